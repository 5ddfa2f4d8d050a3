/// The CPU form of kernels/attention.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/attention.h"

namespace sherd::kernels::cpu {

void attention_forward(ThreadTeam& team, const AttentionForward& args);
void attention_backward(ThreadTeam& team, const AttentionBackward& args);
/// Per thread.
std::int64_t attention_forward_scratch_floats(const AttentionShape& shape);
std::int64_t attention_backward_scratch_floats(const AttentionShape& shape, DType dtype);

void join_attention_sinks(ThreadTeam& team, const AttentionJoinSinks& args);
void attention_sinks_gradient(ThreadTeam& team, const AttentionSinksGradient& args);

}  // namespace sherd::kernels::cpu
