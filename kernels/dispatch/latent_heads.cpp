#include "kernels/latent_heads.h"

#include "kernels/check_tensor.h"
#include "kernels/columns.h"
#include "kernels/cpu/latent_heads.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check(const LatentHeads& shape) {
  SHERD_CHECK(shape.plain % 2 == 0 && shape.rotated % 2 == 0 && shape.value <= shape.head_width(),
              "latent heads of {} + {} and values of {}", shape.plain, shape.rotated, shape.value);
}

void check_parts(const LatentHeads& shape, const ConstTensor& query, const ConstTensor& keys_values,
                 const ConstTensor& rotated_key, const ConstTensor& qkv) {
  check(shape);
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

void check_values(const LatentHeads& shape, const ConstTensor& values, const ConstTensor& padded) {
  check(shape);
  check_tensor("latent heads: values", values, padded.dtype,
               shape.tokens * shape.heads * shape.value);
  check_tensor("latent heads: padded", padded, padded.dtype,
               shape.tokens * shape.heads * shape.head_width());
}

// On a GPU, values are columns of heads.
Columns values_of(const LatentHeads& shape) {
  return {shape.tokens * shape.heads, shape.head_width(), 0, shape.value};
}
Columns whole_values(const LatentHeads& shape) {
  return {shape.tokens * shape.heads, shape.value, 0, shape.value};
}

}  // namespace

void join_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor query,
                       ConstTensor keys_values, ConstTensor rotated_key, Tensor qkv) {
  check_parts(shape, query, keys_values, rotated_key, qkv);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::join_latent_heads, launches::join_latent_heads, shape, query,
                  keys_values, rotated_key, qkv);
  }
  stream.run("join_latent_heads", [=, &stream] {
    cpu::join_latent_heads(stream.team(), shape, query, keys_values, rotated_key, qkv);
  });
}

void split_latent_heads(Stream& stream, const LatentHeads& shape, ConstTensor d_qkv, Tensor d_query,
                        Tensor d_keys_values, Tensor d_rotated_key) {
  check_parts(shape, d_query, d_keys_values, d_rotated_key, d_qkv);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::split_latent_heads, launches::split_latent_heads, shape, d_qkv,
                  d_query, d_keys_values, d_rotated_key);
  }
  stream.run("split_latent_heads", [=, &stream] {
    cpu::split_latent_heads(stream.team(), shape, d_qkv, d_query, d_keys_values, d_rotated_key);
  });
}

void take_values(Stream& stream, const LatentHeads& shape, ConstTensor padded, Tensor values) {
  check_values(shape, values, padded);
  if (is_cuda(stream)) {
    return move_columns(stream, values_of(shape), padded, whole_values(shape), values);
  }
  stream.run("take_values",
             [=, &stream] { cpu::take_values(stream.team(), shape, padded, values); });
}

void spread_values(Stream& stream, const LatentHeads& shape, ConstTensor values, Tensor padded) {
  check_values(shape, values, padded);
  if (is_cuda(stream)) {
    const Columns columns = values_of(shape);
    clear_columns(stream, {columns.rows, columns.width, shape.value, columns.width - shape.value},
                  padded);
    return move_columns(stream, whole_values(shape), values, columns, padded);
  }
  stream.run("spread_values",
             [=, &stream] { cpu::spread_values(stream.team(), shape, values, padded); });
}

}  // namespace sherd::kernels
