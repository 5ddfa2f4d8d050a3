#include "kernels/cpu/latent_heads.h"

#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/latent_halves.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// Where a token's heads are in packed rows and in those of their parts.
struct Widths {
  explicit Widths(const LatentHeads& shape)
      : head(shape.head_width()),
        heads(shape.heads * head),
        part(shape.plain + shape.value),
        parts(shape.heads * part) {}
  std::int64_t head, heads, part, parts;
};

}  // namespace

void join_latent_heads(ThreadTeam& team, const LatentHeads& shape, ConstTensor query,
                       ConstTensor keys_values, ConstTensor rotated_key, Tensor qkv) {
  const LatentHalves halves(shape);
  const Widths w(shape);
  dispatch_float(qkv.dtype, [&]<class T>(T) {
    parallel_rows(team, shape.tokens, 3 * w.heads, [&](std::int64_t t) {
      const T* query_E = query.as<T>() + t * w.heads;
      const T* parts_E = keys_values.as<T>() + t * w.parts;
      const T* key_R = rotated_key.as<T>() + t * shape.columns + shape.first;
      T* out_E = qkv.as<T>() + t * 3 * w.heads;
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const T* query_K = query_E + h * w.head;
        const T* part = parts_E + h * w.part;
        T* out_K = out_E + h * w.head;
        halves.join(query_K, query_K + shape.plain, out_K);
        halves.join(part, key_R, out_K + w.heads);
        T* end = std::copy_n(part + shape.plain, shape.value, out_K + 2 * w.heads);
        std::fill_n(end, w.head - shape.value, T{});
      }
    });
  });
}

void split_latent_heads(ThreadTeam& team, const LatentHeads& shape, ConstTensor d_qkv,
                        Tensor d_query, Tensor d_keys_values, Tensor d_rotated_key) {
  const LatentHalves halves(shape);
  const Widths w(shape);
  dispatch_float(d_qkv.dtype, [&]<class T>(T) {
    parallel_rows(team, shape.tokens, 3 * w.heads, [&](std::int64_t t) {
      const T* in_E = d_qkv.as<T>() + t * 3 * w.heads;
      T* query_E = d_query.as<T>() + t * w.heads;
      T* parts_E = d_keys_values.as<T>() + t * w.parts;
      T* key_R = d_rotated_key.as<T>() + t * shape.columns + shape.first;
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const T* in_K = in_E + h * w.head;
        T* part = parts_E + h * w.part;
        halves.take_plain(in_K, query_E + h * w.head);
        halves.take_rotated(in_K, query_E + h * w.head + shape.plain);
        halves.take_plain(in_K + w.heads, part);
        std::copy_n(in_K + 2 * w.heads, shape.value, part + shape.plain);
      }
      for_each_block(0, shape.rotated, [&](std::int64_t first, int count) {
        BlockScratch sums;
        for (int i = 0; i < count; ++i) {
          const std::int64_t j = first + i, half = j / halves.rotated;
          const T* in = in_E + w.heads + half * halves.width + j % halves.rotated;
          sums.value[i] = 0.0f;
          for (std::int64_t h = 0; h < shape.heads; ++h) {
            sums.value[i] += static_cast<float>(in[h * w.head]);
          }
        }
        narrow(sums.value, key_R + first, count);
      });
    });
  });
}

void take_values(ThreadTeam& team, const LatentHeads& shape, ConstTensor padded, Tensor values) {
  const std::int64_t K = shape.head_width(), V = shape.value;
  dispatch_float(padded.dtype, [&]<class T>(T) {
    parallel_rows(team, shape.tokens * shape.heads, K, [&](std::int64_t row) {
      std::copy_n(padded.as<T>() + row * K, V, values.as<T>() + row * V);
    });
  });
}

void spread_values(ThreadTeam& team, const LatentHeads& shape, ConstTensor values, Tensor padded) {
  const std::int64_t K = shape.head_width(), V = shape.value;
  dispatch_float(padded.dtype, [&]<class T>(T) {
    parallel_rows(team, shape.tokens * shape.heads, K, [&](std::int64_t row) {
      std::fill_n(std::copy_n(values.as<T>() + row * V, V, padded.as<T>() + row * K), K - V, T{});
    });
  });
}

}  // namespace sherd::kernels::cpu
