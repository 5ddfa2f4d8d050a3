#include "kernels/attention.h"

#include <algorithm>
#include <bit>

#include "core/thread_team.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/device.h"
#include "kernels/device_common/attention.h"
#include "kernels/launches/on_gpu.h"
#include "kernels/token_groups.h"

namespace sherd::kernels {
namespace {

void check_shape(const AttentionShape& shape) {
  SHERD_CHECK(shape.sequences >= 1 && shape.positions >= 1 && shape.head_width >= 1,
              "attention: {} sequences of {} positions, heads of width {}", shape.sequences,
              shape.positions, shape.head_width);
  SHERD_CHECK(
      shape.kv_heads >= 1 && shape.query_heads % shape.kv_heads == 0 && shape.query_heads >= 1,
      "attention: {} query heads on {} key/value heads", shape.query_heads, shape.kv_heads);
  SHERD_CHECK(shape.all_query_heads == 0 ||
                  (shape.first_query_head >= 0 &&
                   shape.first_query_head + shape.query_heads <= shape.all_query_heads),
              "attention: heads [{}, +{}) of {}", shape.first_query_head, shape.query_heads,
              shape.all_query_heads);
  SHERD_CHECK(std::has_single_bit(static_cast<unsigned>(shape.kv_sum_groups)) &&
                  shape.kv_sum_groups <= 8 &&
                  shape.query_heads / shape.kv_heads % shape.kv_sum_groups == 0,
              "attention: {} groups of {} query heads on {} key/value heads", shape.kv_sum_groups,
              shape.query_heads, shape.kv_heads);
  SHERD_CHECK(shape.first_query >= 0 && shape.queries >= 0 &&
                  shape.first_query + shape.num_queries() <= shape.positions,
              "attention: queries [{}, +{}) of {}", shape.first_query, shape.num_queries(),
              shape.positions);
  SHERD_CHECK(shape.query_groups == 0 ||
                  (std::has_single_bit(static_cast<unsigned>(shape.query_groups)) &&
                   shape.query_groups <= kMostTokenGroups &&
                   shape.query_groups * shape.of_a_query_group >= shape.num_queries()),
              "attention: {} groups of {} queries, of {}", shape.query_groups,
              shape.of_a_query_group, shape.num_queries());
  const AttentionBlock& block = shape.block;
  SHERD_CHECK(!block || (shape.kv_sum_groups == 1 && shape.query_groups == 0 &&
                         (block.first_key + block.keys <= shape.first_query ||
                          (block.first_key == shape.first_query && block.keys == shape.queries))),
              "attention: keys [{}, +{}) of queries [{}, +{})", block.first_key, block.keys,
              shape.first_query, shape.queries);
  SHERD_CHECK(!block || (shape.queries > 0 && block.query_row + shape.queries <= block.rows &&
                         block.key_row + block.keys <= block.rows),
              "attention: {} queries and {} keys from rows {} and {} of {}", shape.queries,
              block.keys, block.query_row, block.key_row, block.rows);
  SHERD_CHECK(shape.scale >= 0.0f && shape.window >= 0 && shape.softcap >= 0.0f,
              "attention: scale {}, window {}, soft cap {}", shape.scale, shape.window,
              shape.softcap);
  SHERD_CHECK(shape.value_width >= 0 && shape.value_width <= shape.head_width,
              "attention: values of width {} in heads of {}", shape.value_width, shape.head_width);
}

void check_documents(const AttentionShape& shape, const Documents& documents) {
  if (!documents) return;
  check_tensor("attention: starts of documents", documents.starts, DType::kI32,
               documents.count() + 1);
  check_tensor("attention: lengths of documents", documents.lengths, DType::kI32,
               documents.count());
  if (!documents.positions) return;
  check_tensor("attention: positions", documents.positions, DType::kI32, shape.query_tokens());
}

void check_keys_values(const AttentionShape& shape, const ConstTensor& keys_values, DType dtype) {
  SHERD_CHECK(shape.block || (shape.queries > 0) == static_cast<bool>(keys_values),
              "attention: {} queries, and keys and values apart", shape.queries);
  if (!keys_values) return;
  check_tensor("attention: keys and values", keys_values, dtype,
               shape.key_tokens() * 2 * shape.kv_heads * shape.head_width);
}

void check_whole_heads(const AttentionShape& shape) {
  check_shape(shape);
  SHERD_CHECK(!shape.block && shape.values_width() == shape.head_width,
              "attention: sinks of a block, or of values of width {} in heads of {}",
              shape.values_width(), shape.head_width);
}

// A model whose sums are canonical is refused on a GPU before.
void check_on_gpu(const AttentionShape& shape) {
  SHERD_CHECK(shape.kv_sum_groups == 1 && shape.query_groups == 0,
              "attention: sums in groups on a GPU");
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  const DType dtype = args.qkv.dtype;
  check_tensor("attention: qkv", args.qkv, dtype, shape.query_tokens() * shape.packed_width());
  SHERD_CHECK(shape.block || !args.merge, "attention: all keys' results are merged");
  check_tensor("attention: out", args.out, shape.block ? DType::kF32 : dtype,
               shape.query_tokens() * shape.query_heads * shape.head_width);
  check_tensor("attention: lse", args.lse, DType::kF32, shape.query_tokens() * shape.query_heads);
  check_documents(shape, args.documents);
  check_keys_values(shape, args.keys_values, dtype);
  if (args.maxima) {
    check_tensor("attention: maxima", args.maxima, DType::kI32, shape.query_heads);
  }
  if (args.sinks) {
    check_tensor("attention: sinks", args.sinks, dtype, shape.query_heads);
    SHERD_CHECK(!shape.block, "attention: sinks of a block");
  }
  if (is_cuda(stream)) {
    check_on_gpu(shape);
    if (args.maxima) on_gpu(stream, cuda::attention_maxima, launches::attention_maxima, args);
    return on_gpu(stream, cuda::attention_forward, launches::attention_forward, args);
  }
  stream.run("attention_forward", [&stream, args] { cpu::attention_forward(stream.team(), args); });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionShape& shape = args.shape;
  check_shape(shape);
  const DType dtype = args.qkv.dtype;
  const std::int64_t out_numel = shape.query_tokens() * shape.query_heads * shape.head_width;
  check_tensor("attention: qkv", args.qkv, dtype, shape.query_tokens() * shape.packed_width());
  check_tensor("attention: out", args.out, dtype, out_numel);
  check_tensor("attention: dout", args.dout, dtype, out_numel);
  check_tensor("attention: lse", args.lse, DType::kF32, shape.query_tokens() * shape.query_heads);
  if (shape.block) {
    check_tensor("attention: dq", args.dq, DType::kF32, out_numel);
  } else {
    check_tensor("attention: dqkv", args.dqkv, dtype, shape.query_tokens() * shape.packed_width());
  }
  SHERD_CHECK(shape.queries == 0 || args.dkv, "attention: nowhere for all keys' gradients");
  if (args.dkv) {
    const int planes = args.dkv_of_each_group ? shape.kv_sum_groups : 1;
    check_tensor("attention: dkv", args.dkv, DType::kF32,
                 planes * shape.key_tokens() * 2 * shape.kv_heads * shape.head_width);
  }
  check_documents(shape, args.documents);
  check_keys_values(shape, args.keys_values, dtype);
  if (is_cuda(stream)) {
    check_on_gpu(shape);
    SHERD_CHECK(!args.dkv || shape.queries > 0 || shape.shares_keys,
                "attention: f32 gradients of keys that nobody shares, on a GPU");
    return on_gpu(stream, cuda::attention_backward, launches::attention_backward, args);
  }
  stream.run("attention_backward",
             [&stream, args] { cpu::attention_backward(stream.team(), args); });
}

void join_attention_sinks(Stream& stream, const AttentionJoinSinks& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t rows = shape.query_tokens() * shape.query_heads;
  check_whole_heads(shape);
  check_tensor("sinks: sinks", args.sinks, args.sinks.dtype, shape.query_heads);
  check_tensor("sinks: out", args.out, args.out.dtype, rows * shape.head_width);
  check_tensor("sinks: lse", args.lse, DType::kF32, rows);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::join_attention_sinks, launches::join_attention_sinks, args);
  }
  stream.run("join_attention_sinks",
             [&stream, args] { cpu::join_attention_sinks(stream.team(), args); });
}

void attention_sinks_gradient(Stream& stream, const AttentionSinksGradient& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t rows = shape.query_tokens() * shape.query_heads;
  check_whole_heads(shape);
  check_tensor("sinks: out", args.out, args.out.dtype, rows * shape.head_width);
  check_tensor("sinks: dout", args.dout, args.out.dtype, rows * shape.head_width);
  check_tensor("sinks: lse", args.lse, DType::kF32, rows);
  check_tensor("sinks: sinks", args.sinks, args.out.dtype, shape.query_heads);
  check_tensor("sinks: d_sinks", args.d_sinks, args.d_sinks.dtype, shape.query_heads);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::attention_sinks_gradient, launches::attention_sinks_gradient, args);
  }
  stream.run("attention_sinks_gradient",
             [&stream, args] { cpu::attention_sinks_gradient(stream.team(), args); });
}

std::int64_t attention_workspace_bytes(const AttentionShape& most, DType dtype,
                                       const ComputeDevice& device) {
  check_shape(most);
  if (device.kind == DeviceKind::kCuda) {
    return device_common::attention_workspace_bytes(most, dtype, device.deterministic);
  }
  const std::int64_t floats = std::max(cpu::attention_forward_scratch_floats(most),
                                       cpu::attention_backward_scratch_floats(most, dtype));
  return floats * 4 * device.num_threads;
}

}  // namespace sherd::kernels
