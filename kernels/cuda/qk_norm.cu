// T tokens, H query heads, G key/value heads, K head width. A row is a head or a projection; a
// block does one row of one token. Sums run over its threads in an order that the widest row's
// width decides, sums over tokens in one that T and the shape decide. A thread reads back only what
// it has written itself. Where other ranks have parts of the rows, what whole rows add up to is
// given.
#include "kernels/qk_norm.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_blocks.h"
#include "kernels/device_common/norm_blocks.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::narrow;
using device_common::widen;

// Where the rows of a token lie, in elements; queries first, then keys.
struct Rows {
  std::int64_t tokens, query_heads, heads, width, packed, raw;  // heads: H + G; width: K
  bool are_heads;
  std::int64_t own_weights;  // of a head; 0: heads share them
  std::int64_t all_query_heads,
      all_kv_heads;  // of all ranks, where they have parts of rows; 0: rows are whole

  explicit Rows(const QkNormShape& shape)
      : tokens(shape.tokens),
        query_heads(shape.query_heads),
        heads(shape.heads()),
        width(shape.head_width),
        packed(shape.packed_width()),
        raw(shape.raw_width()),
        are_heads(shape.rows != QkRows::kProjections),
        own_weights(shape.rows == QkRows::kPerHead ? shape.head_width : 0),
        all_query_heads(shape.all_query_heads),
        all_kv_heads(shape.all_kv_heads) {}
  __host__ __device__ bool are_cut() const { return all_query_heads > 0; }
  /// Elements of the whole row.
  __device__ float whole_width_of(std::int64_t row) const {
    if (!are_cut()) return static_cast<float>(width_of(row));
    return static_cast<float>(width * (is_query(row) ? all_query_heads : all_kv_heads));
  }
  __host__ __device__ std::int64_t of_a_token() const { return are_heads ? heads : 2; }
  __device__ bool is_query(std::int64_t row) const { return row < (are_heads ? query_heads : 1); }
  /// Row's first element within a token.
  __device__ std::int64_t at(std::int64_t row) const {
    return row * width * (are_heads ? 1 : query_heads);
  }
  __device__ std::int64_t width_of(std::int64_t row) const {
    if (are_heads) return width;
    return width * (is_query(row) ? query_heads : heads - query_heads);
  }
  std::int64_t widest() const {
    if (are_heads) return width;
    const std::int64_t kv_heads = heads - query_heads;
    return width * (query_heads > kv_heads ? query_heads : kv_heads);
  }
};

template <class T>
struct Arguments {
  Rows rows;
  const T *query_weight, *key_weight;
  T *qkv, *raw;  // of the backward: dqkv, and only read
  float *mean, *rstd;
  // Of cut rows: what whole ones add up to, [2, T] each; and what these parts do, [2, T] or [4, T].
  const float *row_sums, *row_squares;
  float* sums;
  float eps, weight_offset;
  bool centred;

  struct Row {
    T *qkv, *raw;
    const T* weight;
    std::int64_t width;
    float whole_width;
    std::int64_t sum;  // its place in a [2, T]
  };
  // Norms without weights have none.
  __device__ float factor(const T* weight, std::int64_t d) const {
    return weight == nullptr ? 1.0f : widen(weight[d]) + weight_offset;
  }
  __device__ const T* weight_of(std::int64_t row) const {
    if (query_weight == nullptr) return nullptr;
    return rows.is_query(row) ? query_weight + row * rows.own_weights
                              : key_weight + (row - rows.query_heads) * rows.own_weights;
  }
  /// Row number `number` of all tokens' rows.
  __device__ Row row(std::int64_t number) const {
    const std::int64_t token = number / rows.of_a_token(), row = number % rows.of_a_token();
    const std::int64_t at = rows.at(row);
    return {qkv + token * rows.packed + at,
            raw + token * rows.raw + at,
            weight_of(row),
            rows.width_of(row),
            rows.whole_width_of(row),
            row * rows.tokens + token};
  }
};

constexpr int kMostThreads = 512;  // device_common::row_threads

template <class T>
__global__ void __launch_bounds__(kMostThreads) forward_row(const Arguments<T> a) {
  __shared__ float scratch[32];
  const auto [x, raw, weight, width, count, at] = a.row(blockIdx.x);
  float sum = 0.0f;
  for (std::int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    const float value = widen(x[d]);
    raw[d] = x[d];
    sum += a.centred ? value : value * value;
  }
  float mean = 0.0f, squares = 0.0f;
  if (a.rows.are_cut()) {
    mean = a.centred ? a.row_sums[at] / count : 0.0f;
    squares = a.row_squares[at];
  } else {
    squares = block_sum(sum, scratch);
  }
  if (a.centred && !a.rows.are_cut()) {
    mean = squares / count;
    float part = 0.0f;
    for (std::int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float difference = widen(x[d]) - mean;
      part += difference * difference;
    }
    squares = block_sum(part, scratch);
  }
  const float rstd = 1.0f / sqrtf(squares / count + a.eps);
  if (threadIdx.x == 0) {
    if (a.mean != nullptr) a.mean[blockIdx.x] = mean;
    a.rstd[blockIdx.x] = rstd;
  }
  for (std::int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    x[d] = narrow<T>((widen(x[d]) - mean) * rstd * a.factor(weight, d));
  }
}

// Of a part of a row: sums[its place] = its values, or squares; with row_sums the squared
// differences from the mean.
template <class T>
__global__ void __launch_bounds__(kMostThreads) sums_of_parts(const Arguments<T> a) {
  __shared__ float scratch[32];
  const auto row = a.row(blockIdx.x);
  const bool squares = !a.centred || a.row_sums != nullptr;
  const float mean = a.row_sums != nullptr ? a.row_sums[row.sum] / row.whole_width : 0.0f;
  float sum = 0.0f;
  for (std::int64_t d = threadIdx.x; d < row.width; d += blockDim.x) {
    const float difference = widen(row.qkv[d]) - mean;
    sum += squares ? difference * difference : difference;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) a.sums[row.sum] = sum;
}

enum class Pass { kSums, kGradient };

// kSums: of a part of a row, sums[4][T] of g and g xhat; queries, then keys. kGradient reads there
// what whole rows add up to, where they are cut.
template <Pass kPass, class T>
__global__ void __launch_bounds__(kMostThreads) backward_row(const Arguments<T> a) {
  __shared__ float scratch[64];
  const auto [dy, raw, weight, width, count, at] = a.row(blockIdx.x);
  const float mean = a.centred ? a.mean[blockIdx.x] : 0.0f, rstd = a.rstd[blockIdx.x];
  float sum_g = 0.0f, sum_g_xhat = 0.0f;
  // Row 0 of a token has planes 0 and 1, row 1 has 2 and 3.
  const std::int64_t plane = at / a.rows.tokens * a.rows.tokens + at;
  if (kPass == Pass::kSums || !a.rows.are_cut()) {
    for (std::int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float g = widen(dy[d]) * a.factor(weight, d);
      sum_g += g;
      sum_g_xhat += g * ((widen(raw[d]) - mean) * rstd);
    }
    block_sums(sum_g, sum_g_xhat, scratch);
  } else {
    sum_g = a.sums[plane];
    sum_g_xhat = a.sums[plane + a.rows.tokens];
  }
  if constexpr (kPass == Pass::kSums) {
    if (threadIdx.x != 0) return;
    a.sums[plane] = sum_g;
    a.sums[plane + a.rows.tokens] = sum_g_xhat;
  } else {
    const float mean_g = a.centred ? sum_g / count : 0.0f, mean_g_xhat = sum_g_xhat / count;
    for (std::int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float g = widen(dy[d]) * a.factor(weight, d);
      const float xhat = (widen(raw[d]) - mean) * rstd;
      dy[d] = narrow<T>(rstd * (g - mean_g - xhat * mean_g_xhat));
    }
  }
}

// Of each block of tokens, in order, and of a token's heads in order, or its own head: partial
// [blocks][weights], of queries first. A thread has one weight.
constexpr int kColumnThreads = 128;

template <class T>
__global__ void __launch_bounds__(kColumnThreads)
    weight_sums(const Arguments<T> a, std::int64_t query_weights, std::int64_t weights,
                float* partial) {
  const std::int64_t w = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (w >= weights) return;
  const bool query = w < query_weights;
  const std::int64_t of_kind = query ? w : w - query_weights;
  const std::int64_t of_a_token = a.rows.of_a_token();
  const std::int64_t first_key_row = a.rows.are_heads ? a.rows.query_heads : 1;
  const bool one_row = a.rows.own_weights > 0;
  const auto head =
      one_row ? static_cast<std::uint32_t>(of_kind) / static_cast<std::uint32_t>(a.rows.width) : 0u;
  const std::int64_t column = of_kind - head * a.rows.own_weights;
  const std::int64_t row_begin = (query ? 0 : first_key_row) + head;
  const std::int64_t row_end = one_row ? row_begin + 1 : query ? first_key_row : of_a_token;
  const device_common::RowBlocks blocks(a.rows.tokens, weights);
  float sum = 0.0f;
  for (std::int64_t t = blocks.begin(blockIdx.y); t < blocks.end(blockIdx.y); ++t) {
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const std::int64_t kept = t * of_a_token + row, at = a.rows.at(row) + column;
      const float mean = a.centred ? a.mean[kept] : 0.0f;
      const float xhat = (widen(a.raw[t * a.rows.raw + at]) - mean) * a.rstd[kept];
      sum += widen(a.qkv[t * a.rows.packed + at]) * xhat;
    }
  }
  partial[blockIdx.y * weights + w] = sum;
}

template <class T>
Arguments<T> arguments_of(const QkNormShape& shape, ConstTensor query_weight,
                          ConstTensor key_weight) {
  return {.rows = Rows(shape),
          .query_weight = query_weight.as<T>(),
          .key_weight = key_weight.as<T>(),
          .qkv = nullptr,
          .raw = nullptr,
          .mean = nullptr,
          .rstd = nullptr,
          .row_sums = nullptr,
          .row_squares = nullptr,
          .sums = nullptr,
          .eps = shape.eps,
          .weight_offset = shape.weight_offset,
          .centred = shape.kind == NormKind::kLayerNorm};
}

template <class T>
Arguments<T> arguments_of(const QkNormBackward& args) {
  Arguments<T> a = arguments_of<T>(args.shape, args.query_weight, args.key_weight);
  a.qkv = args.dqkv.as<T>();
  a.raw = const_cast<T*>(args.raw.as<T>());
  a.mean = const_cast<float*>(args.mean.as<float>());
  a.rstd = const_cast<float*>(args.rstd.as<float>());
  a.sums = args.row_sums.as<float>();
  return a;
}

unsigned grid_over_rows(const QkNormShape& shape) {
  return grid_of(shape.tokens * shape.rows_per_token());
}

template <class T>
int threads_of(const Arguments<T>& a) {
  return device_common::row_threads(a.rows.widest());
}

}  // namespace

void qk_norm_sums(Stream& stream, const QkNormSums& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(args.shape, {}, {});
    a.qkv = const_cast<T*>(args.qkv.as<T>());
    a.row_sums = args.row_sums.as<float>();
    a.sums = args.sums.as<float>();
    sums_of_parts<<<grid_over_rows(args.shape), threads_of(a), 0, handle_of(stream)>>>(a);
  });
  check_launch("qk_norm_sums");
}

void qk_norm_forward(Stream& stream, const QkNormForward& args) {
  const QkNormShape& shape = args.shape;
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    Arguments<T> a = arguments_of<T>(shape, args.query_weight, args.key_weight);
    a.qkv = args.qkv.as<T>();
    a.raw = args.raw.as<T>();
    a.mean = args.mean.as<float>();
    a.rstd = args.rstd.as<float>();
    a.row_sums = args.row_sums.as<float>();
    a.row_squares = args.row_squares.as<float>();
    forward_row<<<grid_over_rows(shape), threads_of(a), 0, handle_of(stream)>>>(a);
  });
  check_launch("qk_norm_forward");
}

void qk_norm_backward_sums(Stream& stream, const QkNormBackward& args) {
  dispatch_float(args.dqkv.dtype, [&]<class T>(T) {
    const Arguments<T> a = arguments_of<T>(args);
    backward_row<Pass::kSums>
        <<<grid_over_rows(args.shape), threads_of(a), 0, handle_of(stream)>>>(a);
  });
  check_launch("qk_norm_backward_sums");
}

void qk_norm_backward(Stream& stream, const QkNormBackward& args) {
  const QkNormShape& shape = args.shape;
  const std::int64_t query_weights = shape.query_weights();
  const std::int64_t weights = query_weights + shape.key_weights();
  const std::int64_t blocks = device_common::RowBlocks(shape.tokens, weights).count();
  auto* partial = static_cast<float*>(args.workspace.data);
  dispatch_float(args.dqkv.dtype, [&]<class T>(T) {
    const Arguments<T> a = arguments_of<T>(args);
    if (!shape.weightless) {  // before the rows' gradients take the place of what the sums read
      const dim3 grid(grid_of(device_common::ceil_div(weights, kColumnThreads)), grid_of(blocks));
      weight_sums<<<grid, kColumnThreads, 0, handle_of(stream)>>>(a, query_weights, weights,
                                                                  partial);
      check_launch("qk_norm_backward (blocks)");
    }
    backward_row<Pass::kGradient>
        <<<grid_over_rows(shape), threads_of(a), 0, handle_of(stream)>>>(a);
  });
  check_launch("qk_norm_backward");
  if (shape.weightless) return;
  const char* what = "qk_norm_backward (weights)";
  add_row_blocks(stream, what, {partial, blocks, weights}, false, args.d_query_weight);
  add_row_blocks(stream, what, {partial + query_weights, blocks, weights}, false,
                 args.d_key_weight);
}

}  // namespace sherd::kernels::cuda
