/// The CPU form of kernels/linear.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/linear.h"

namespace sherd::kernels::cpu {

void linear_forward(ThreadTeam& team, const LinearForward& args);
void linear_backward_input(ThreadTeam& team, const LinearBackwardInput& args);
void linear_backward_weight(ThreadTeam& team, const LinearBackwardWeight& args);
/// Never decreases with more tokens, inputs or outputs (tests/kernels/workspace_test.cpp).
std::int64_t linear_workspace_bytes(const LinearShape& most, DType dtype, DType grad_dtype);

}  // namespace sherd::kernels::cpu
