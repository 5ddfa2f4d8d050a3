// How many tokens' logits there are at a time.
#include <algorithm>
#include <bit>

#include "engine/model/activations.h"
#include "kernels/token_groups.h"

namespace sherd::model {

int logits_chunks_of_groups(const ModelShape& shape) {
  const kernels::TokenGroups groups = shape.token_groups();
  const bool even = groups.groups * groups.of_a_group == groups.positions;
  if (!groups || !even) return 1;
  // For each row of the matrix.
  const auto bytes = [&](int chunks) {
    const int sums = std::bit_width(static_cast<unsigned>(chunks)) - 1;
    return shape.tokens() / chunks * static_cast<std::int64_t>(size_of(shape.dtype)) +
           sums * shape.width * static_cast<std::int64_t>(sizeof(float));
  };
  int least = 1;
  for (int chunks = 2; chunks <= groups.groups; chunks *= 2) {
    if (bytes(chunks) < bytes(least)) least = chunks;
  }
  return least;
}

std::int64_t logits_chunk_tokens(const ModelShape& shape, DeviceKind device) {
  if (shape.part.has_canonical_sums()) return shape.tokens() / logits_chunks_of_groups(shape);
  constexpr std::int64_t kMultiple = 64;
  const std::int64_t elements = shape.logits_chunk_elements * (device == DeviceKind::kCuda ? 8 : 1);
  const std::int64_t fitting = std::max<std::int64_t>(
      elements / shape.whole_vocab_size() / kMultiple * kMultiple, kMultiple);
  // Chunks of one size: a short last one would be slower still.
  const std::int64_t chunks = (shape.tokens() + fitting - 1) / fitting;
  const std::int64_t even = (shape.tokens() + chunks - 1) / chunks;
  return std::min(shape.tokens(), (even + kMultiple - 1) / kMultiple * kMultiple);
}

}  // namespace sherd::model
