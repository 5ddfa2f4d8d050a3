/// Rotation of query and key heads, a pack of pairs at a time; the equation is in kernels/rotary.h.
#pragma once

#include "kernels/device_common/number.h"

namespace sherd::kernels::device_common {

/// Applied to the pairs: tokens x rotated heads x half a head; a pack lies in one head, because
/// half is a multiple of N.
template <class T>
struct Rotate {
  T* qkv;
  const float* table;
  const std::int32_t* token_positions;  // null: row mod positions
  std::int64_t positions, rotated_heads, all_heads, half;
  float sign;

  std::int64_t num_pairs(std::int64_t tokens) const { return tokens * rotated_heads * half; }

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t pair) const {
    const std::int64_t j = pair % half, head = pair / half % rotated_heads;
    const std::int64_t token = pair / (half * rotated_heads);
    T* low = qkv + (token * all_heads + head) * 2 * half + j;
    const std::int64_t position =
        token_positions != nullptr ? token_positions[token] : token % positions;
    const float* cosine = table + position * 2 * half + j;
    float x[N], y[N], c[N], s[N];
    load_wide<N>(low, x);
    load_wide<N>(low + half, y);
    load<N>(cosine, c);
    load<N>(cosine + half, s);
    for (int i = 0; i < N; ++i) {
      const float a = x[i], b = y[i], turn = sign * s[i];
      x[i] = a * c[i] - b * turn;
      y[i] = b * c[i] + a * turn;
    }
    store_narrow<N>(low, x);
    store_narrow<N>(low + half, y);
  }
};

}  // namespace sherd::kernels::device_common
