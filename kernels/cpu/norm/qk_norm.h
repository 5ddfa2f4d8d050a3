/// CPU form of kernels/qk_norm.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/qk_norm.h"

namespace sherd::kernels::cpu {

void qk_norm_sums(ThreadTeam& team, const QkNormSums& args);
void qk_norm_forward(ThreadTeam& team, const QkNormForward& args);
void qk_norm_backward_sums(ThreadTeam& team, const QkNormBackward& args);
void qk_norm_backward(ThreadTeam& team, const QkNormBackward& args);
std::int64_t qk_norm_backward_workspace_bytes(const QkNormShape& most);

}  // namespace sherd::kernels::cpu
