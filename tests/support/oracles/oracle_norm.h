/// kernels/norm.h in double precision. `mask` holds dropout's factor for every element of the
/// branch.
#pragma once

#include "kernels/norm.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

/// residual + mask * branch
Values masked_sum(const Values& residual, const Values& branch, const Values& mask);

struct Norm {
  Values y, mean, rstd;
};
/// `residual` already includes the branch; `bias` may be empty.
Norm norm_forward(const kernels::NormShape& shape, const Values& residual, const Values& weight,
                  const Values& bias);

struct NormGradients {
  Values d_residual, dweight, dbias;
};
/// `d_residual_out` may be empty. The branch's gradient is mask * d_residual.
NormGradients norm_backward(const kernels::NormShape& shape, const Values& residual,
                            const Values& weight, const Values& dy, const Values& d_residual_out);

}  // namespace sherd::oracle
