/// CPU form of kernels/norm.h; the equations are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/norm.h"

namespace sherd::kernels::cpu {

void norm_forward(ThreadTeam& team, const NormForward& args);
/// In kernels/cpu/norm/norm_backward.cpp.
void norm_backward(ThreadTeam& team, const NormBackward& args);
std::int64_t norm_backward_workspace_bytes(const NormShape& most);

}  // namespace sherd::kernels::cpu
