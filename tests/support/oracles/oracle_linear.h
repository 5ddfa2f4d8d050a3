/// kernels/linear.h in double precision.
#pragma once

#include "kernels/linear.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

/// `bias` may be empty.
Values linear_forward(const kernels::LinearShape& shape, const Values& x, const Values& w,
                      const Values& bias);
Values linear_backward_input(const kernels::LinearShape& shape, const Values& dy, const Values& w);
Values linear_backward_weight(const kernels::LinearShape& shape, const Values& dy, const Values& x);
Values linear_backward_bias(const kernels::LinearShape& shape, const Values& dy);

}  // namespace sherd::oracle
