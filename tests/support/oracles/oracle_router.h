/// kernels/router.h in double precision. Padding is given as one flag per token.
#pragma once

#include <vector>

#include "kernels/router.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

struct Routing {
  std::vector<std::vector<std::int32_t>> chosen;  ///< per token, ascending; empty: padding
  Values weights;                                 ///< [T, k]
};
Routing route(const kernels::RouterShape& shape, const Values& logits, const Values& bias,
              const std::vector<bool>& padding);

/// The two losses, added over balance groups. The choice is given, so that it is differentiable; `previous` holds
/// the counts of the step before and their number of tokens.
double balance_loss(const kernels::RouterShape& shape, const Values& logits, const Routing& routing,
                    const Values& previous = {});
double z_loss(const kernels::RouterShape& shape, const Values& logits, const Routing& routing);
/// Weights of a choice that is given.
Values weights_of(const kernels::RouterShape& shape, const Values& logits, const Routing& routing);

}  // namespace sherd::oracle
