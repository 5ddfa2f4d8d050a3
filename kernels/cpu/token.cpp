// T tokens, S positions, D width, V vocabulary.
#include "kernels/cpu/token.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/random.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

template <class T>
void embed(ThreadTeam& team, const EmbeddingForward& args) {
  const std::int64_t D = args.width;
  const auto* tokens_T = args.tokens.as<std::int32_t>();
  const T* token_weight_VD = args.token_weight.as<T>();
  const T* position_weight_SD = args.position_weight.as<T>();
  const auto* positions_T = args.documents.positions.as<std::int32_t>();
  T* y_TD = args.y.as<T>();
  parallel_rows(team, args.sequences * args.positions, D, [&](std::int64_t t) {
    const std::int64_t row = row_of_token(args.rows, args.vocab_size, tokens_T[t]);
    if (row < 0) {
      std::fill_n(y_TD + t * D, D, T{});
      return;
    }
    const T* token_D = token_weight_VD + row * D;
    const bool aside = args.interleaved && row < interleaved_rows(args.vocab_size);
    for_each_block(0, D, [&](std::int64_t d, int count) {
      BlockScratch token_scratch, position_scratch, y_scratch;
      T read[kBlock];
      if (aside) read_interleaved(token_weight_VD, D, row, d, count, read);
      const float* token = load_block(aside ? read : token_D + d, count, token_scratch);
      float* y = block_target(y_TD + t * D + d, y_scratch);
      if (position_weight_SD) {
        const std::int64_t s = positions_T ? positions_T[t] : t % args.positions;
        const T* position_D = position_weight_SD + s * D;
        const float* position = load_block(position_D + d, count, position_scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) y[i] = args.scale * token[i] + position[i];
      } else {
#pragma omp simd
        for (int i = 0; i < count; ++i) y[i] = args.scale * token[i];
      }
      if (args.dropout.active()) apply_dropout(args.dropout, t * D + d, count, y, y);
      store_block(y_TD + t * D + d, count, y_scratch);
    });
  });
}

// Adds dropout mask * dy[t, d .. d + count) to `sum`.
template <class T>
void add_masked(const EmbeddingBackward& args, std::int64_t t, std::int64_t d, int count,
                float* sum) {
  const std::int64_t first = t * args.width + d;
  float dy[kBlock] = {};
  widen(args.dy.as<T>() + first, dy, count);
  if (args.dropout.active()) apply_dropout(args.dropout, first, count, dy, dy);
#pragma omp simd
  for (int i = 0; i < count; ++i) sum[i] += dy[i];
}

// The positions t in the order of their tokens' rows, those of one row in their own order.
struct TokenOrder {
  const std::int32_t* position;
  std::int64_t count;  // T, or fewer where some tokens' rows are elsewhere
};

// A counting sort. `workspace` holds V + 1 counts, then the result.
TokenOrder order_by_token(const EmbeddingBackward& args) {
  const std::int64_t T = args.sequences * args.positions, V = args.vocab_size;
  const auto* tokens_T = args.tokens.as<std::int32_t>();
  auto* next_V = static_cast<std::int32_t*>(args.workspace.data);
  std::int32_t* order_T = next_V + V + 1;
  std::fill_n(next_V, V + 1, 0);
  const auto row_of = [&](std::int64_t t) { return row_of_token(args.rows, V, tokens_T[t]); };
  for (std::int64_t t = 0; t < T; ++t) {
    if (row_of(t) >= 0) ++next_V[row_of(t) + 1];
  }
  for (std::int64_t v = 0; v < V; ++v) next_V[v + 1] += next_V[v];
  for (std::int64_t t = 0; t < T; ++t) {
    if (row_of(t) >= 0) order_T[next_V[row_of(t)]++] = static_cast<std::int32_t>(t);
  }
  return {order_T, next_V[V]};
}

void set_zero(ThreadTeam& team, const Tensor& x) {
  constexpr std::int64_t kBytes = 256 * 1024;
  const std::int64_t bytes = x.bytes();
  team.parallel_for((bytes + kBytes - 1) / kBytes, [&](std::int64_t task, int) {
    const std::int64_t count = std::min(kBytes, bytes - task * kBytes);
    std::memset(static_cast<char*>(x.data) + task * kBytes, 0, static_cast<std::size_t>(count));
  });
}

// sums[0] = the tree over the first `count` of them.
template <std::size_t kColumns>
void add_as_tree(float (*sums)[kColumns], int count) {
  for (int apart = 1; apart < count; apart *= 2) {
    for (int group = 0; group + apart < count; group += 2 * apart) {
#pragma omp simd
      for (std::size_t c = 0; c < kColumns; ++c) sums[group][c] += sums[group + apart][c];
    }
  }
}

// Tasks own columns, not tokens: a frequent token would hold up whoever owned it.
template <class T, class G>
void sum_by_token(ThreadTeam& team, const EmbeddingBackward& args) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t D = args.width;
  const auto* tokens_T = args.tokens.as<std::int32_t>();
  const TokenOrder order = order_by_token(args);
  const int groups = std::max(1, args.groups.groups);
  if (!args.add_to_token_gradient) set_zero(team, args.d_token_weight);
  team.parallel_for((D + kColumns - 1) / kColumns, [&](std::int64_t task, int) {
    const std::int64_t d = task * kColumns;
    const int count = static_cast<int>(std::min(kColumns, D - d));
    for (std::int64_t i = 0; i < order.count;) {
      const std::int32_t token = tokens_T[order.position[i]];
      float sums[kMostTokenGroups][kColumns];
      std::memset(sums, 0, static_cast<std::size_t>(groups) * sizeof sums[0]);
      for (; i < order.count && tokens_T[order.position[i]] == token; ++i) {
        const std::int64_t t = order.position[i];
        const std::int64_t group = args.groups ? t % args.positions / args.groups.of_a_group : 0;
        add_masked<T>(args, t, d, count, sums[group]);
      }
      for (int group = 0; group < groups; ++group) {
        for (int c = 0; c < count; ++c) sums[group][c] *= args.scale;
      }
      add_as_tree(sums, groups);
      const float* sum = sums[0];
      G* gradient = args.d_token_weight.as<G>() + (token - args.rows.first) * D + d;
      if (args.add_to_token_gradient) {
        add_narrowed(sum, gradient, count);
      } else {
        narrow(sum, gradient, count);
      }
    }
  });
}

// The tokens at position s of their row or document, in order.
template <class Visit>
void for_each_token_at(const EmbeddingBackward& args, std::int64_t s, const Visit& visit) {
  const std::int64_t S = args.positions;
  const auto* starts = args.documents.starts.as<std::int32_t>();
  const auto* lengths = args.documents.lengths.as<std::int32_t>();
  for (std::int64_t i = 0; args.documents && i < args.documents.count(); ++i) {
    if (s >= lengths[i]) continue;
    const std::int64_t token = args.own_token(starts[i] + s);
    if (token >= 0) visit(token);
  }
  if (args.documents) return;
  const std::int64_t row = args.row_positions > 0 ? args.row_positions : S;
  for (std::int64_t b = 0; s < row && b < args.sequences; ++b) {
    const std::int64_t token = args.own_token(b * row + s);
    if (token >= 0) visit(token);
  }
}

template <class T, class G>
void sum_by_position(ThreadTeam& team, const EmbeddingBackward& args) {
  const std::int64_t D = args.width;
  G* gradient_SD = args.d_position_weight.as<G>();
  parallel_rows(team, args.position_rows, D * args.sequences, [&](std::int64_t s) {
    for_each_block(0, D, [&](std::int64_t d, int count) {
      float sum[kBlock] = {};
      for_each_token_at(args, s, [&](std::int64_t t) { add_masked<T>(args, t, d, count, sum); });
      narrow(sum, gradient_SD + s * D + d, count);
    });
  });
}

}  // namespace

void embedding_forward(ThreadTeam& team, const EmbeddingForward& args) {
  dispatch_float(args.y.dtype, [&]<class T>(T) { embed<T>(team, args); });
}

void embedding_backward(ThreadTeam& team, const EmbeddingBackward& args) {
  const std::int64_t needed =
      embedding_backward_workspace_bytes(args.sequences * args.positions, args.vocab_size);
  SHERD_CHECK(args.workspace.bytes() >= needed, "embedding: a workspace of {} bytes, {} needed",
              args.workspace.bytes(), needed);
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    dispatch_float(args.d_token_weight.dtype, [&]<class G>(G) { sum_by_token<T, G>(team, args); });
    if (!args.d_position_weight) return;
    dispatch_float(args.d_position_weight.dtype,
                   [&]<class G>(G) { sum_by_position<T, G>(team, args); });
  });
}

std::int64_t embedding_backward_workspace_bytes(std::int64_t tokens, std::int64_t vocab_size) {
  return (vocab_size + 1 + tokens) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

}  // namespace sherd::kernels::cpu
