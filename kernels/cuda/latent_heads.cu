#include "kernels/device_common/latent_heads.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/columns.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::allow_packs;
using device_common::Words;

// Calls `move(zero, shape, elements of a T)` with a T of 16 bytes where everything lies so.
template <class Move>
void in_widest(const LatentHeads& shape, const ConstTensor& qkv, bool aligned, const Move& move) {
  const auto pack = static_cast<std::int64_t>(sizeof(Words) / size_of(qkv.dtype));
  if (aligned && device_common::are_packs(shape, pack)) {
    return move(Words{}, device_common::in_packs(shape, pack), pack);
  }
  dispatch_float(qkv.dtype, [&]<class T>(T zero) { move(zero, shape, std::int64_t{1}); });
}

const char* bytes(const ConstTensor& tensor) {
  return static_cast<const char*>(tensor.data);
}

}  // namespace

void join_latent_heads(Stream& stream, const LatentHeads& shape, const ConstTensor& query,
                       const ConstTensor& keys_values, const ConstTensor& rotated_key,
                       const Tensor& qkv) {
  const bool aligned =
      allow_packs(bytes(query), bytes(keys_values), bytes(rotated_key), bytes(qkv));
  in_widest(shape, qkv, aligned, [&]<class T>(T, const LatentHeads& heads, std::int64_t pack) {
    launch_flat<1>(stream, "join_latent_heads", qkv.numel / pack, false,
                   device_common::JoinLatentHeads<T>{heads, static_cast<const T*>(query.data),
                                                     static_cast<const T*>(keys_values.data),
                                                     static_cast<const T*>(rotated_key.data),
                                                     static_cast<T*>(qkv.data)});
  });
}

void split_latent_heads(Stream& stream, const LatentHeads& shape, const ConstTensor& d_qkv,
                        const Tensor& d_query, const Tensor& d_keys_values,
                        const Tensor& d_rotated_key) {
  const bool aligned = allow_packs(bytes(d_qkv), bytes(d_query), bytes(d_keys_values));
  in_widest(shape, d_qkv, aligned, [&]<class T>(T, const LatentHeads& heads, std::int64_t pack) {
    launch_flat<1>(stream, "split_latent_heads", (d_query.numel + d_keys_values.numel) / pack,
                   false,
                   device_common::SplitLatentHeads<T>{heads, static_cast<const T*>(d_qkv.data),
                                                      static_cast<T*>(d_query.data),
                                                      static_cast<T*>(d_keys_values.data)});
  });
  dispatch_float(d_qkv.dtype, [&]<class T>(T) {
    launch_flat<1>(stream, "split_latent_heads (rotated keys)", shape.tokens * shape.rotated, false,
                   device_common::SumRotatedKeys<T>{shape, d_qkv.as<T>(), d_rotated_key.as<T>()});
  });
}

}  // namespace sherd::kernels::cuda
