/// kernels/update.h and kernels/orthogonalise.h in double precision: one call, one step over a
/// whole slice. Only numbers and segments of the arguments are read, not tensors.
#pragma once

#include <span>

#include "kernels/update.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

struct UpdateState {
  Values parameter;
  Values first_moment;   ///< or the momentum buffer
  Values second_moment;  ///< Adam and LAMB
};

void adam_update(UpdateState& state, const Values& gradient, const kernels::AdamUpdate& args);
void sgd_update(UpdateState& state, const Values& gradient, const kernels::SgdUpdate& args);
void lion_update(UpdateState& state, const Values& gradient, const kernels::LionUpdate& args);

/// For each segment, the sums of squares of the parameter and of the values it is compared with.
struct SegmentNorms {
  Values parameter, other;
};
/// The moment update of LAMB. `lamb_norms` then reads the direction, and `lamb_apply` applies it.
void lamb_moments(UpdateState& state, const Values& gradient, const kernels::LambUpdate& args);
SegmentNorms lamb_norms(const UpdateState& state, const kernels::LambUpdate& args);
void lamb_apply(UpdateState& state, const kernels::LambUpdate& args, const Values& ratios);

SegmentNorms lars_norms(const UpdateState& state, const Values& gradient,
                        const kernels::LarsUpdate& args);
void lars_apply(UpdateState& state, const Values& gradient, const kernels::LarsUpdate& args,
                const Values& ratios);

/// Returns u, zero outside all segments.
Values muon_momentum(UpdateState& state, const Values& gradient, const kernels::MuonUpdate& args);
void muon_apply(UpdateState& state, const Values& update, const kernels::MuonUpdate& args,
                const Values& ratios);

/// With the roundings to `dtype` that kernels/orthogonalise.h states; everything else is exact.
Values orthogonalise(const Values& matrix, std::int64_t rows, std::int64_t columns,
                     DType dtype = DType::kF64, bool polar_express = false);

}  // namespace sherd::oracle
