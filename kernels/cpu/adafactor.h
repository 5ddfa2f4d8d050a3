/// CPU form of kernels/adafactor.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/adafactor.h"

namespace sherd::kernels::cpu {

void adafactor_squares(ThreadTeam& team, const AdafactorUpdate& args, Tensor sums);
void adafactor_variances(ThreadTeam& team, const AdafactorVariances& args);
void adafactor_norms(ThreadTeam& team, const AdafactorUpdate& args, Tensor sums);
void adafactor_apply(ThreadTeam& team, const AdafactorUpdate& args, std::span<const float> ratios);

}  // namespace sherd::kernels::cpu
