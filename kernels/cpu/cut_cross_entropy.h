/// The CPU form of kernels/cut_cross_entropy.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/cut_cross_entropy.h"

namespace sherd::kernels::cpu {

void logit_maxima(ThreadTeam& team, const CutCrossEntropy& args);
void exponential_sums(ThreadTeam& team, const CutCrossEntropy& args);
void cut_cross_entropy(ThreadTeam& team, const CutCrossEntropy& args);

}  // namespace sherd::kernels::cpu
