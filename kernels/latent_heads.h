/// Joins queries, keys and values of latent attention (engine/model/layer_shapes.h) to the packed
/// heads of kernels/attention.h, and divides gradients likewise.
///
///   query         [T, H (N + R)]   each head: N plain numbers, then R to be rotated
///   keys_values   [T, H (N + V)]   each head: N plain numbers of its key, then its value
///   rotated_key   R columns of [T, W] from `first` on: of the keys of all heads
///   qkv           [T, 3 H K]       K = N + R: query, key and value heads
///
/// A packed query or key has the rotated numbers where kernels/rotary.h finds pairs (j, j + K/2):
///
///   [R/2 rotated ; N/2 plain ; the other R/2 rotated ; the other N/2 plain]
///
/// A packed value is followed by K - V zeros.
///
///   join_latent_heads    the parts -> qkv
///   split_latent_heads   the gradient of qkv -> those of the parts; a rotated key's is the sum over
///                        heads, in their order, in f32, rounded once
///   take_values          [T, H K] -> [T, H V]: without the zeros
///   spread_values        [T, H V] -> [T, H K], with zeros
///
/// Types    f32, bf16 or f16, all of one type; copied numbers keep their bits.
/// Bits     a GPU has those of a CPU.
/// Errors   other sizes, odd N or R, or V above K, are a bug in Sherd (SHERD_CHECK).
#pragma once

#include "core/host_device.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

struct LatentHeads {
  std::int64_t tokens = 0;              ///< T
  std::int64_t heads = 0;               ///< H
  std::int64_t plain = 0;               ///< N
  std::int64_t rotated = 0;             ///< R
  std::int64_t value = 0;               ///< V
  std::int64_t first = 0, columns = 0;  ///< of rotated_key: where it begins, and W

  SHERD_HOST_DEVICE std::int64_t head_width() const { return plain + rotated; }
};

void join_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor query,
                       ConstTensor keys_values, ConstTensor rotated_key, Tensor qkv);
void split_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor d_qkv, Tensor d_query,
                        Tensor d_keys_values, Tensor d_rotated_key);
void take_values(Stream& stream, const LatentHeads& shape, ConstTensor padded, Tensor values);
void spread_values(Stream& stream, const LatentHeads& shape, ConstTensor values, Tensor padded);

}  // namespace sherd::kernels
