/// Elements of kernels/latent_heads.h. T is anything of an element's size; or of 16 bytes, if all
/// widths are so many whole ones.
#pragma once

#include "kernels/device_common/number.h"
#include "kernels/latent_heads.h"

namespace sherd::kernels::device_common {

/// Whether the halves and values of heads, and the rotated key, are whole packs of `of` elements.
inline bool are_packs(const LatentHeads& shape, std::int64_t of) {
  for (const std::int64_t width :
       {shape.plain / 2, shape.rotated / 2, shape.value, shape.first, shape.columns}) {
    if (width % of != 0) return false;
  }
  return true;
}
/// The same heads, counted in packs.
inline LatentHeads in_packs(LatentHeads shape, std::int64_t of) {
  for (std::int64_t* width :
       {&shape.plain, &shape.rotated, &shape.value, &shape.first, &shape.columns}) {
    *width /= of;
  }
  return shape;
}

/// Of a packed query or key: what its column c is.
struct LatentColumn {
  std::int64_t at;  ///< among the plain or the rotated numbers
  bool rotates;

  SHERD_HOST_DEVICE LatentColumn(const LatentHeads& shape, std::int64_t c) {
    const std::int64_t plain = shape.plain / 2, rotated = shape.rotated / 2;
    const std::int64_t half = c / (plain + rotated), place = c % (plain + rotated);
    rotates = place < rotated;
    at = rotates ? half * rotated + place : half * plain + place - rotated;
  }
};
/// The columns of a packed head with a plain number, and with a rotated one.
SHERD_HOST_DEVICE inline std::int64_t column_of_plain(const LatentHeads& shape, std::int64_t i) {
  const std::int64_t plain = shape.plain / 2, rotated = shape.rotated / 2;
  return i / plain * (plain + rotated) + rotated + i % plain;
}
SHERD_HOST_DEVICE inline std::int64_t column_of_rotated(const LatentHeads& shape, std::int64_t i) {
  const std::int64_t plain = shape.plain / 2, rotated = shape.rotated / 2;
  return i / rotated * (plain + rotated) + i % rotated;
}

/// Applied to qkv's elements.
template <class T>
struct JoinLatentHeads {
  LatentHeads shape;
  const T *query, *keys_values, *rotated_key;
  T* qkv;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) qkv[i] = at(i);
  }

 private:
  SHERD_HOST_DEVICE T at(std::int64_t i) const {
    const std::int64_t K = shape.head_width(), H = shape.heads, N = shape.plain;
    const std::int64_t c = i % K, h = i / K % H, kind = i / (K * H) % 3, t = i / (3 * K * H);
    const std::int64_t part = (t * H + h) * (N + shape.value);
    if (kind == 2) return c < shape.value ? keys_values[part + N + c] : T{};
    const LatentColumn column(shape, c);
    if (kind == 0) return query[(t * H + h) * K + (column.rotates ? N : 0) + column.at];
    return column.rotates ? rotated_key[t * shape.columns + shape.first + column.at]
                          : keys_values[part + column.at];
  }
};

/// Applied to the elements of d_query and d_keys_values, head by head.
template <class T>
struct SplitLatentHeads {
  LatentHeads shape;
  const T* d_qkv;
  T *d_query, *d_keys_values;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) move(i);
  }

 private:
  SHERD_HOST_DEVICE void move(std::int64_t i) const {
    const std::int64_t K = shape.head_width(), H = shape.heads, N = shape.plain;
    const std::int64_t part = N + shape.value, c = i % (K + part), head = i / (K + part);
    const T* from = d_qkv + head / H * 3 * H * K + head % H * K;
    if (c < K) {
      const std::int64_t column =
          c < N ? column_of_plain(shape, c) : column_of_rotated(shape, c - N);
      d_query[head * K + c] = from[column];
    } else if (c < K + N) {
      d_keys_values[head * part + c - K] = from[H * K + column_of_plain(shape, c - K)];
    } else {
      d_keys_values[head * part + c - K] = from[2 * H * K + c - K - N];
    }
  }
};

/// Applied to the rotated key's R numbers of each token: sums over heads, in their order.
template <class T>
struct SumRotatedKeys {
  LatentHeads shape;
  const T* d_qkv;
  T* d_rotated_key;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t K = shape.head_width(), H = shape.heads, R = shape.rotated;
    for (std::int64_t i = first; i < first + N; ++i) {
      const std::int64_t t = i / R, r = i % R;
      const T* from = d_qkv + t * 3 * H * K + H * K + column_of_rotated(shape, r);
      float sum = 0.0f;
      for (std::int64_t h = 0; h < H; ++h) sum += widen(from[h * K]);
      d_rotated_key[t * shape.columns + shape.first + r] = narrow<T>(sum);
    }
  }
};

}  // namespace sherd::kernels::device_common
