#include "kernels/qk_norm.h"

#include "core/error.h"
#include "kernels/cpu/norm/qk_norm.h"
#include "kernels/device.h"
#include "kernels/device_common/norm_blocks.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check(ConstTensor tensor, DType dtype, std::int64_t numel) {
  SHERD_CHECK(tensor.dtype == dtype && tensor.numel == numel,
              "{} elements of {} where {} of {} were expected", tensor.numel, name_of(tensor.dtype),
              numel, name_of(dtype));
}

void check_kept(const QkNormShape& shape, DType dtype, ConstTensor raw, ConstTensor mean,
                ConstTensor rstd) {
  check(raw, dtype, shape.tokens * shape.raw_width());
  check(rstd, DType::kF32, shape.tokens * shape.rows_per_token());
  if (shape.kind == NormKind::kLayerNorm || mean) {
    check(mean, DType::kF32, shape.tokens * shape.rows_per_token());
  }
}

void check_cut(const QkNormShape& shape) {
  SHERD_CHECK(!shape.is_cut() || (shape.rows == QkRows::kProjections &&
                                  shape.all_query_heads >= shape.query_heads &&
                                  shape.all_kv_heads >= shape.kv_heads),
              "rows of {} and {} of {} and {} heads", shape.query_heads, shape.kv_heads,
              shape.all_query_heads, shape.all_kv_heads);
}

void check_weights(const QkNormShape& shape, DType dtype, ConstTensor query, ConstTensor key) {
  if (!shape.weightless) {
    check(query, dtype, shape.query_weights());
    return check(key, dtype, shape.key_weights());
  }
  SHERD_CHECK(shape.kind == NormKind::kRmsNorm && shape.rows == QkRows::kHeads && !query && !key,
              "a norm of heads without weights");
}

// A model whose sums are canonical is refused there before.
void check_device(const Stream& stream, const QkNormShape& shape) {
  SHERD_CHECK(!is_cuda(stream) || (shape.groups == 1 && !shape.token_groups),
              "a norm of queries and keys with sums in {} groups, on a GPU", shape.groups);
}

}  // namespace

void qk_norm_sums(Stream& stream, const QkNormSums& args) {
  SHERD_CHECK(args.shape.is_cut(), "sums of rows that are whole");
  check(args.qkv, args.qkv.dtype, args.shape.tokens * args.shape.packed_width());
  check(args.sums, DType::kF32, 2 * args.shape.tokens);
  if (args.row_sums) check(args.row_sums, DType::kF32, 2 * args.shape.tokens);
  check_device(stream, args.shape);
  if (is_cuda(stream)) return on_gpu(stream, cuda::qk_norm_sums, launches::qk_norm_sums, args);
  stream.run("qk_norm_sums", [=, &stream] { cpu::qk_norm_sums(stream.team(), args); });
}

void qk_norm_forward(Stream& stream, const QkNormForward& args) {
  const QkNormShape& shape = args.shape;
  check_cut(shape);
  if (shape.is_cut()) check(args.row_squares, DType::kF32, 2 * shape.tokens);
  if (shape.is_cut() && shape.kind == NormKind::kLayerNorm) {
    check(args.row_sums, DType::kF32, 2 * shape.tokens);
  }
  const DType dtype = args.qkv.dtype;
  check(args.qkv, dtype, shape.tokens * shape.packed_width());
  check_weights(shape, dtype, args.query_weight, args.key_weight);
  check_kept(shape, dtype, args.raw, args.mean, args.rstd);
  check_device(stream, args.shape);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::qk_norm_forward, launches::qk_norm_forward, args);
  stream.run("qk_norm_forward", [=, &stream] { cpu::qk_norm_forward(stream.team(), args); });
}

namespace {

void check_backward(Stream& stream, const QkNormBackward& args) {
  const QkNormShape& shape = args.shape;
  check_cut(shape);
  if (shape.is_cut()) check(args.row_sums, DType::kF32, 4 * shape.tokens);
  const DType dtype = args.dqkv.dtype;
  check(args.dqkv, dtype, shape.tokens * shape.packed_width());
  check_weights(shape, dtype, args.query_weight, args.key_weight);
  check_kept(shape, dtype, args.raw, args.mean, args.rstd);
  if (shape.token_groups) {
    check_token_groups(shape.token_groups, shape.tokens);
    SHERD_CHECK(shape.weightless || args.d_query_weight.dtype == DType::kF32,
                "gradients of a norm as trees, rounded");
  }
  const int sums = args.of_each_group ? shape.token_groups.groups : 1;
  SHERD_CHECK(shape.weightless || (args.d_query_weight.numel == sums * shape.query_weights() &&
                                   args.d_key_weight.numel == sums * shape.key_weights()),
              "{} and {} elements of weight gradients", args.d_query_weight.numel,
              args.d_key_weight.numel);
  const std::int64_t needed = qk_norm_backward_workspace_bytes(shape, compute_device(stream));
  SHERD_CHECK(args.workspace.bytes() >= needed, "a workspace of {} bytes where {} are needed",
              args.workspace.bytes(), needed);
  check_device(stream, args.shape);
}

}  // namespace

void qk_norm_backward_sums(Stream& stream, const QkNormBackward& args) {
  SHERD_CHECK(args.shape.is_cut(), "sums of rows that are whole");
  check_backward(stream, args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::qk_norm_backward_sums, launches::qk_norm_backward_sums, args);
  stream.run("qk_norm_backward_sums",
             [=, &stream] { cpu::qk_norm_backward_sums(stream.team(), args); });
}

void qk_norm_backward(Stream& stream, const QkNormBackward& args) {
  check_backward(stream, args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::qk_norm_backward, launches::qk_norm_backward, args);
  stream.run("qk_norm_backward", [=, &stream] { cpu::qk_norm_backward(stream.team(), args); });
}

std::int64_t qk_norm_backward_workspace_bytes(const QkNormShape& most,
                                              const ComputeDevice& device) {
  if (device.kind == DeviceKind::kCuda) {
    return device_common::qk_norm_sums_bytes(most.tokens,
                                             most.query_weights() + most.key_weights());
  }
  return cpu::qk_norm_backward_workspace_bytes(most);
}

}  // namespace sherd::kernels
