/// kernels/update.h in double precision: one call, one step over a whole slice.
#pragma once

#include <span>

#include "kernels/update.h"
#include "tests/support/oracle_values.h"

namespace sherd::oracle {

/// Each element's weight decay, 0 outside all segments.
Values weight_decays(std::span<const kernels::UpdateSegment> segments, std::int64_t numel);

struct AdamWState {
  Values parameter, exp_avg, exp_avg_sq;
};
/// Tensors of `args` are not looked at.
void adamw_update(AdamWState& state, const Values& gradient, const kernels::AdamWUpdate& args);

struct SgdState {
  Values parameter, momentum_buffer;
};
void sgd_update(SgdState& state, const Values& gradient, const kernels::SgdUpdate& args);

}  // namespace sherd::oracle
