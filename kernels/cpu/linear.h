/// The CPU form of kernels/linear.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/linear.h"

namespace sherd::kernels::cpu {

void linear_forward(ThreadTeam& team, const LinearForward& args);
void linear_backward_input(ThreadTeam& team, const LinearBackwardInput& args);
void linear_backward_weight(ThreadTeam& team, const LinearBackwardWeight& args);
std::int64_t linear_workspace_bytes(const LinearShape& shape, DType dtype, int num_threads);

}  // namespace sherd::kernels::cpu
