/// The CPU form of kernels/token.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/token.h"

namespace sherd::kernels::cpu {

inline std::int64_t checked_token(std::int32_t token, std::int64_t vocab_size) {
  SHERD_CHECK(token >= 0 && token < vocab_size, "token {} in a vocabulary of {}", token,
              vocab_size);
  return token;
}

/// The row of `token` among `num_rows`; -1: it is on another rank.
inline std::int64_t row_of_token(const VocabularyRows& rows, std::int64_t num_rows,
                                 std::int32_t token) {
  SHERD_CHECK(rows.knows(token, num_rows), "token {} in a vocabulary of {}", token,
              rows.all > 0 ? rows.all : num_rows);
  return rows.row_of(token, num_rows);
}

void embedding_forward(ThreadTeam& team, const EmbeddingForward& args);
void embedding_backward(ThreadTeam& team, const EmbeddingBackward& args);
std::int64_t embedding_backward_workspace_bytes(std::int64_t tokens, std::int64_t vocab_size);
void cross_entropy(ThreadTeam& team, const CrossEntropy& args);
void shape_logits(ThreadTeam& team, const LogitsForm& form, Tensor logits);

}  // namespace sherd::kernels::cpu
