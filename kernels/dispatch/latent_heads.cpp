#include "kernels/latent_heads.h"

#include "kernels/check_tensor.h"
#include "kernels/cpu/latent_heads.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check(const Stream& stream, const LatentHeads& shape) {
  SHERD_CHECK(!is_cuda(stream), "latent heads on a GPU");
  SHERD_CHECK(shape.plain % 2 == 0 && shape.rotated % 2 == 0 && shape.value <= shape.head_width(),
              "latent heads of {} + {} and values of {}", shape.plain, shape.rotated, shape.value);
}

void check_parts(const Stream& stream, const LatentHeads& shape, const ConstTensor& query,
                 const ConstTensor& keys_values, const ConstTensor& rotated_key,
                 const ConstTensor& qkv) {
  check(stream, shape);
  const std::int64_t T = shape.tokens, H = shape.heads, K = shape.head_width();
  check_tensor("latent heads: query", query, qkv.dtype, T * H * K);
  check_tensor("latent heads: keys_values", keys_values, qkv.dtype,
               T * H * (shape.plain + shape.value));
  check_tensor("latent heads: rotated_key", rotated_key, qkv.dtype, T * shape.columns);
  check_tensor("latent heads: qkv", qkv, qkv.dtype, T * 3 * H * K);
  SHERD_CHECK(shape.first >= 0 && shape.first + shape.rotated <= shape.columns,
              "a rotated key of {} from column {} of {}", shape.rotated, shape.first,
              shape.columns);
}

void check_values(const Stream& stream, const LatentHeads& shape, const ConstTensor& values,
                  const ConstTensor& padded) {
  check(stream, shape);
  check_tensor("latent heads: values", values, padded.dtype,
               shape.tokens * shape.heads * shape.value);
  check_tensor("latent heads: padded", padded, padded.dtype,
               shape.tokens * shape.heads * shape.head_width());
}

}  // namespace

void join_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor query,
                       ConstTensor keys_values, ConstTensor rotated_key, Tensor qkv) {
  check_parts(stream, shape, query, keys_values, rotated_key, qkv);
  stream.run("join_latent_heads", [=, &stream] {
    cpu::join_latent_heads(stream.team(), shape, query, keys_values, rotated_key, qkv);
  });
}

void split_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor d_qkv, Tensor d_query,
                        Tensor d_keys_values, Tensor d_rotated_key) {
  check_parts(stream, shape, d_query, d_keys_values, d_rotated_key, d_qkv);
  stream.run("split_latent_heads", [=, &stream] {
    cpu::split_latent_heads(stream.team(), shape, d_qkv, d_query, d_keys_values, d_rotated_key);
  });
}

void take_values(Stream& stream, const LatentHeads& shape, ConstTensor padded, Tensor values) {
  check_values(stream, shape, values, padded);
  stream.run("take_values",
             [=, &stream] { cpu::take_values(stream.team(), shape, padded, values); });
}

void spread_values(Stream& stream, const LatentHeads& shape, ConstTensor values, Tensor padded) {
  check_values(stream, shape, values, padded);
  stream.run("spread_values",
             [=, &stream] { cpu::spread_values(stream.team(), shape, values, padded); });
}

}  // namespace sherd::kernels
