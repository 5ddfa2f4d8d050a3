/// kernels/qk_norm.h in double precision: applies the norm oracle to rows copied from the packed
/// tensor.
#pragma once

#include "kernels/qk_norm.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

Values qk_norm_forward(const kernels::QkNormShape& shape, Values qkv, const Values& query_weight,
                       const Values& key_weight);

struct QkNormGradients {
  Values dqkv, query_weight, key_weight;
};
QkNormGradients qk_norm_backward(const kernels::QkNormShape& shape, const Values& qkv,
                                 const Values& query_weight, const Values& key_weight,
                                 const Values& dy);

}  // namespace sherd::oracle
