#include <algorithm>

#include "kernels/device_common/attention.h"
#include "kernels/device_common/matmul_table.h"
#include "kernels/launches/memory.h"

namespace sherd::kernels::launches {

namespace {

using device_common::MatmulKey;

Launch matmul(std::string_view kernel, const MatmulKey& key, DType dtype, std::int64_t read,
              std::int64_t written) {
  return {.kernel = kernel,
          .kind = LaunchKind::kMatmul,
          .read = read,
          .written = written,
          .flops = 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) *
                   static_cast<double>(key.k),
          .dtype = dtype,
          .m = key.m,
          .n = key.n,
          .k = key.k,
          .matmul = device_common::text_of(key)};
}

}  // namespace

Launches linear_forward(const LinearForward& args) {
  return {matmul("linear_forward", device_common::matmul_key(args), args.x.dtype,
                 bytes_of(args.x, args.w, args.bias, args.residual),
                 bytes_of(args.y, args.gelu_input))};
}
Launches linear_backward_input(const LinearBackwardInput& args) {
  return {matmul(
      "linear_backward_input", device_common::matmul_key(args), args.dy.dtype,
      bytes_of(args.dy, args.w, args.gelu_input) + (args.add_to_output ? args.dx.bytes() : 0),
      args.dx.bytes())};
}
Launches linear_backward_weight(const LinearBackwardWeight& args) {
  Launches launches = {matmul(
      "linear_backward_weight", device_common::matmul_key(args), args.dy.dtype,
      bytes_of(args.dy, args.x) + (args.add_to_output ? args.dw.bytes() : 0), args.dw.bytes())};
  if (!args.dbias) return launches;
  const std::int64_t blocks =
      (args.shape.tokens + device_common::kBiasRows - 1) / device_common::kBiasRows;
  launches.push_back(memory("linear_backward_weight (bias, blocks)", args.dy.bytes(),
                            blocks * args.shape.outputs * kFloat));
  launches.push_back(
      add_row_blocks("linear_backward_weight (bias)", blocks, args.dbias, args.add_to_output));
  return launches;
}

namespace {

// Pairs of a query and a key that it sees, of all heads. Of a block of keys that aren't the
// queries' own all.
double seen_pairs(const AttentionShape& shape) {
  const auto heads = static_cast<double>(shape.sequences * shape.query_heads);
  if (shape.block && shape.block.first_key != shape.first_query) {
    return static_cast<double>(shape.num_queries()) * static_cast<double>(shape.num_keys()) * heads;
  }
  if (shape.block) {
    const auto queries = static_cast<double>(shape.num_queries());
    return queries * (queries + 1) / 2 * heads;
  }
  const std::int64_t last = shape.first_query + shape.num_queries();
  const std::int64_t window = shape.windowed() ? shape.window : shape.positions;
  // Queries up to the window's end see all keys before them, the others as many as the window has.
  const auto up_to = [&](std::int64_t queries) {
    const auto q = static_cast<double>(queries), w = static_cast<double>(window);
    return queries <= window ? q * (q + 1) / 2 : w * (w + 1) / 2 + (q - w) * w;
  };
  return (up_to(last) - up_to(shape.first_query)) * heads;
}

// Of `products` for each pair, `of_values` are with values or their gradients.
struct Products {
  double all, of_values;
};

Launch attention(std::string_view kernel, const AttentionShape& shape, DType dtype,
                 const Products& products, std::int64_t read, std::int64_t written) {
  const auto width = static_cast<double>(shape.head_width);
  const bool by_cudnn = dtype != DType::kF32;
  const double of_values =
      by_cudnn ? static_cast<double>(device_common::cudnn_value_width(shape)) : width;
  return {.kernel = kernel,
          .kind = LaunchKind::kAttention,
          .read = read,
          .written = written,
          .flops = 2.0 * seen_pairs(shape) *
                   ((products.all - products.of_values) * width + products.of_values * of_values),
          .dtype = dtype,
          .m = 0,
          .n = 0,
          .k = shape.head_width,
          .backward = products.all > 2};
}

template <class Args>
bool by_cudnn(const Args& args) {
  return device_common::attention_form(args.shape, args.qkv.dtype,
                                       static_cast<bool>(args.documents)) ==
         device_common::AttentionForm::kCudnn;
}

// Of a block's queries and keys: in the type that is multiplied, and in f32.
struct BlockBytes {
  std::int64_t queries, keys, sums, key_sums, statistics;

  BlockBytes(const AttentionShape& shape, DType dtype) {
    const std::int64_t of_queries = shape.sequences * shape.num_queries() * shape.query_heads;
    const std::int64_t of_keys = shape.sequences * shape.num_keys() * 2 * shape.kv_heads;
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    queries = of_queries * shape.head_width * size;
    keys = of_keys * shape.head_width * size;
    sums = of_queries * shape.head_width * kFloat;
    key_sums = of_keys * shape.head_width * kFloat;
    statistics = of_queries * kFloat;
  }
};

Launches seed_of(const Dropout& dropout) {
  return dropout.active() ? Launches{memory("set_pair", 0, 2 * kDouble)} : Launches{};
}

constexpr Products kForward{2, 1}, kBackward{5, 2};

}  // namespace

Launches join_attention_sinks(const AttentionJoinSinks& args) {
  return {memory("join_attention_sinks", bytes_of(args.sinks, args.out, args.lse),
                 bytes_of(args.out, args.lse))};
}
Launches attention_sinks_gradient(const AttentionSinksGradient& args) {
  return {memory("attention_sinks_gradient", bytes_of(args.sinks, args.out, args.dout, args.lse),
                 args.d_sinks.bytes())};
}

Launches attention_maxima(const AttentionForward& args) {
  return {attention("attention_maxima", args.shape, DType::kF32, {1, 0},
                    bytes_of(args.qkv, args.keys_values), args.maxima.bytes())};
}

Launches attention_forward(const AttentionForward& args) {
  const AttentionBlock& block = args.shape.block;
  if (block && by_cudnn(args)) {
    const BlockBytes bytes(args.shape, args.qkv.dtype);
    const std::int64_t merged = bytes.sums + bytes.statistics;
    return seed_of(args.dropout) +
           Launches{attention("attention_forward", args.shape, args.qkv.dtype, kForward,
                              bytes.queries + bytes.keys, bytes.queries + bytes.statistics),
                    memory("merge_block",
                           bytes.queries + bytes.statistics + (args.merge ? merged : 0), merged)};
  }
  const std::int64_t read = bytes_of(args.qkv, args.keys_values);
  const std::int64_t written = bytes_of(args.out, args.lse);
  if (!by_cudnn(args)) {
    return {attention("attention_forward", args.shape, DType::kF32, kForward,
                      read + args.sinks.bytes(), written)};
  }
  const Launches whole =
      seed_of(args.dropout) +
      Launches{attention("attention_forward", args.shape, args.qkv.dtype, kForward, read, written)};
  if (!args.sinks) return whole;
  return whole + join_attention_sinks({args.shape, args.sinks, args.out, args.lse});
}

// Five products: the scores again, dP, dQ, dK and dV. Our own kernels form the first two twice.
Launches attention_backward(const AttentionBackward& args) {
  if (args.shape.block && by_cudnn(args)) {
    const BlockBytes bytes(args.shape, args.qkv.dtype);
    const std::int64_t gradients = bytes.queries + bytes.keys;
    return Launches{memory("take_block_lse", bytes.statistics, bytes.statistics)} +
           seed_of(args.dropout) +
           Launches{attention("attention_backward", args.shape, args.qkv.dtype, kBackward,
                              gradients + 2 * bytes.queries + bytes.statistics, gradients),
                    memory("add_block_gradients", gradients + bytes.sums + bytes.key_sums,
                           bytes.sums + bytes.key_sums)};
  }
  const std::int64_t rows = bytes_of(args.out, args.dout);
  const std::int64_t read = bytes_of(args.qkv, args.keys_values, args.lse);
  const std::int64_t written = bytes_of(args.dqkv, args.dkv);
  if (by_cudnn(args)) {
    return seed_of(args.dropout) +
           Launches{attention("attention_backward", args.shape, args.qkv.dtype, kBackward,
                              read + rows, written)};
  }
  const std::int64_t dot = args.lse.bytes(), half = read + args.dout.bytes() + dot;
  const auto own = [&](std::string_view kernel, double products, std::int64_t out) {
    return attention(kernel, args.shape, DType::kF32, {products, 0}, half, out);
  };
  const std::int64_t queries = args.dq ? args.dq.bytes()
                                       : args.shape.query_tokens() * args.shape.query_heads *
                                             args.shape.head_width *
                                             static_cast<std::int64_t>(size_of(args.qkv.dtype));
  const std::int64_t keys = args.dq ? args.dkv.bytes() : written - queries;
  return {memory("attention_backward (dot)", rows, dot), own("attention_backward (keys)", 4, keys),
          own("attention_backward (queries)", 3, queries)};
}

Launches cached_attention(const CachedAttention& args) {
  const std::int64_t kept = args.count * 2 * args.shape.kv_heads * args.shape.head_width;
  const std::int64_t cache =
      (args.first + args.count) * 2 * args.shape.kv_heads * args.shape.head_width * kFloat;
  return {memory("cached_attention (keep)",
                 kept * static_cast<std::int64_t>(size_of(args.qkv.dtype)), kept * kFloat),
          memory("cached_attention", bytes_of(args.qkv, args.sinks) + cache, args.out.bytes())};
}

// Five rounds of Newton and Schulz, each of three products and two blends.
Launches orthogonalise(const Orthogonalise& args) {
  const std::int64_t small = std::min(args.rows, args.columns);
  const std::int64_t large = std::max(args.rows, args.columns);
  const auto [x, y, gram, gram2, rest] = newton_schulz_parts(args);
  const std::int64_t outer = args.matrix.bytes(), inner = x.bytes();
  const auto blend = [](const Tensor& into) {
    return memory("orthogonalise", 2 * into.bytes(), into.bytes());
  };
  Launches launches = sum_of_squares(args.matrix, {y.data, DType::kF64, 1}, {});
  launches.push_back(memory("orthogonalise", outer, inner));
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    launches = launches + linear_forward({{small, large, small}, x, x, {}, gram, {}}) +
               linear_forward({{small, small, small}, gram, gram, {}, gram2, {}});
    launches.push_back(blend(gram));
    launches = launches + linear_backward_input({{small, large, small}, gram, x, y, false, {}});
    launches.push_back(blend(x));
  }
  launches.push_back(memory("orthogonalise", inner, outer));
  return launches;
}

}  // namespace sherd::kernels::launches
