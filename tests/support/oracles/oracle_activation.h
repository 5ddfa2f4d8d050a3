/// kernels/activation.h in double precision.
#pragma once

#include "kernels/activation.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

Values activation_forward(const kernels::ActivationShape& shape, const Values& x);
Values activation_backward(const kernels::ActivationShape& shape, const Values& x,
                           const Values& dy);

}  // namespace sherd::oracle
