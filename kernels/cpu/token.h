/// The CPU form of kernels/token.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/token.h"

namespace sherd::kernels::cpu {

void embedding_forward(ThreadTeam& team, const EmbeddingForward& args);
void embedding_backward(ThreadTeam& team, const EmbeddingBackward& args);
std::int64_t embedding_backward_workspace_bytes(std::int64_t tokens, std::int64_t vocab_size);
void cross_entropy(ThreadTeam& team, const CrossEntropy& args);

}  // namespace sherd::kernels::cpu
