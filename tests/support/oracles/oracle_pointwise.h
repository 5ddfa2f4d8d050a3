/// kernels/pointwise.h in double precision; dropout masks are in oracle_philox.h, casts in
/// oracle_dtype.h, residual_add is masked_sum of oracle_norm.h.
#pragma once

#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

double sum_of_squares(const Values& x);
Values product(const Values& a, const Values& b);
Values sum(const std::vector<Values>& inputs);

/// Moments of a sample that should be standard normal: mean, variance, third and fourth moment.
struct Moments {
  double mean, variance, skewness, kurtosis;
};
Moments moments_of(const Values& x);

}  // namespace sherd::oracle
