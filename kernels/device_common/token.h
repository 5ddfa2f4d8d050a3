/// The order in which tokens' gradients are summed, and packs of embeddings; kernels/token.h.
#pragma once

#include "kernels/device_common/dropout.h"
#include "kernels/device_common/number.h"
#include "kernels/token.h"

namespace sherd::kernels::device_common {

/// Bytes of the order: one index for every position.
inline std::int64_t token_order_bytes(std::int64_t num_tokens) {
  return num_tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
}

/// The index of position t when positions are sorted by token (stable). All smaller (token,
/// position) pairs precede it. `tile` is a run of positions from `first`; this looks at every
/// kSharers-th of them, from `sharer`. The sum over all tiles and sharers is the index.
template <int kSharers>
SHERD_HOST_DEVICE inline std::int32_t count_before(std::int32_t token, std::int64_t t,
                                                   const std::int32_t* tile, std::int64_t first,
                                                   int count, int sharer) {
  std::int32_t before = 0;
  for (int i = sharer; i < count; i += kSharers) {
    before += tile[i] < token || (tile[i] == token && first + i < t) ? 1 : 0;
  }
  return before;
}

/// Applied to y's elements; a pack lies in one row, because D is a multiple of N.
template <class T>
struct Embed {
  const std::int32_t* tokens;
  const T *token_weight, *position_weight;
  const std::int32_t* token_positions;  // of documents; null: row mod positions
  T* y;
  Mask mask;
  std::int64_t positions, width, vocab_size;
  float scale;
  VocabularyRows rows{};

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t t = first / width, d = first % width;
    const std::int32_t token = tokens[t];
#ifdef __CUDA_ARCH__
    if (!rows.knows(token, vocab_size)) __trap();
#endif
    float value[N] = {}, position[N];
    const std::int64_t row = rows.row_of(token, vocab_size);
    if (row < 0) {  // another rank's
      store_narrow<N>(y + first, value);
      return;
    }
    load_wide<N>(token_weight + row * width + d, value);
    for (int i = 0; i < N; ++i) value[i] = scale * value[i];
    if (position_weight != nullptr) {
      const std::int64_t s = token_positions != nullptr ? token_positions[t] : t % positions;
      load_wide<N>(position_weight + s * width + d, position);
      for (int i = 0; i < N; ++i) value[i] = value[i] + position[i];
    }
    mask.apply<N>(first, value);
    store_narrow<N>(y + first, value);
  }
};

/// One pack of columns of one row of either gradient.
template <class T>
struct EmbeddingSums {
  const T* dy;
  Mask mask;
  std::int64_t width;

  template <int N>
  SHERD_HOST_DEVICE void load_pack(std::int64_t t, std::int64_t d, T (&pack)[N]) const {
    load<N>(dy + t * width + d, pack);
  }
  /// sum += mask * pack, which is dy[t, d .. d + N)
  template <int N>
  SHERD_HOST_DEVICE void add_pack(std::int64_t t, std::int64_t d, const T (&pack)[N],
                                  float (&sum)[N]) const {
    float value[N];
    for (int i = 0; i < N; ++i) value[i] = widen(pack[i]);
    mask.apply<N>(t * width + d, value);
    for (int i = 0; i < N; ++i) sum[i] = sum[i] + value[i];
  }
  template <int N>
  SHERD_HOST_DEVICE void add(std::int64_t t, std::int64_t d, float (&sum)[N]) const {
    T pack[N];
    load_pack<N>(t, d, pack);
    add_pack<N>(t, d, pack, sum);
  }
};

}  // namespace sherd::kernels::device_common
