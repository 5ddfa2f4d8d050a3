/// The CPU form of kernels/experts.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/experts.h"

namespace sherd::kernels::cpu {

void experts_forward(ThreadTeam& team, const ExpertsForward& args);
void experts_backward(ThreadTeam& team, const ExpertsBackward& args);
void experts_input_gradient(ThreadTeam& team, const ExpertsInputGradient& args);
/// In kernels/cpu/experts/gate.cpp, as the next three.
void gate_logits(ThreadTeam& team, const GateLogits& args);
void gate_forward(ThreadTeam& team, const GateForward& args);
void gate_backward(ThreadTeam& team, const GateBackward& args);
void gate_weight_gradient(ThreadTeam& team, const GateWeightGradient& args);
std::int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype, DType grad_dtype);

}  // namespace sherd::kernels::cpu
