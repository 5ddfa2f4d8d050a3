// T tokens, S positions, D width, V vocabulary.
#include "kernels/device_common/token.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

constexpr int kTile = 1024;  // tokens that a block of the ordering compares with at a time

// Every position counts who comes before it: T * T comparisons, without atomics or a table of V
// counters. Eight threads share a position, so that a few thousand positions fill a GPU.
constexpr int kSharers = 8;

__global__ void __launch_bounds__(device_common::kThreads)
    order_by_token(const std::int32_t* tokens, std::int64_t num_tokens, const VocabularyRows rows,
                   std::int64_t num_rows, std::int32_t* order) {
  __shared__ std::int32_t tile[kTile];
  const auto sharer = static_cast<int>(threadIdx.x % kSharers);
  const std::int64_t t =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kSharers;
  const std::int32_t token = t < num_tokens ? tokens[t] : 0;
  if (!rows.knows(token, num_rows)) __trap();
  std::int32_t place = 0;
  for (std::int64_t first = 0; first < num_tokens; first += kTile) {
    const std::int64_t rest = num_tokens - first;
    const int count = rest < kTile ? static_cast<int>(rest) : kTile;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      tile[i] = tokens[first + i];
    }
    __syncthreads();
    place += device_common::count_before<kSharers>(token, t, tile, first, count, sharer);
  }
  for (int offset = kSharers / 2; offset > 0; offset /= 2) {
    place += __shfl_xor_sync(0xffffffffu, place, offset);
  }
  if (t < num_tokens && sharer == 0) order[place] = static_cast<std::int32_t>(t);
}

constexpr int kColumnThreads = 128;
constexpr int kAtOnce = 8;  // rows that a thread reads before it adds them

// The block of a run's first position sums the run, in order; the other blocks, and those of tokens
// whose row is elsewhere, have nothing to do.
// A text's commonest word is a twentieth of it, so a run's rows are read several at a time.
template <int N, class T, class G>
__global__ void __launch_bounds__(kColumnThreads)
    sum_by_token(const device_common::EmbeddingSums<T> sums, const std::int32_t* tokens,
                 const std::int32_t* order, std::int64_t num_tokens, const VocabularyRows rows,
                 std::int64_t num_rows, float scale, bool add, G* gradient) {
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = tokens[order[first]];
  const std::int64_t own_row = rows.row_of(token, num_rows);
  if (own_row < 0) return;
  if (first > 0 && tokens[order[first - 1]] == token) return;
  const std::int64_t d = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (d >= sums.width) return;
  float sum[N] = {};
  bool more = true;
  for (std::int64_t i = first; more; i += kAtOnce) {
    std::int32_t row[kAtOnce];
    T pack[kAtOnce][N];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      row[k] = i + k < num_tokens ? order[i + k] : -1;
      if (row[k] >= 0 && tokens[row[k]] != token) row[k] = -1;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (row[k] >= 0) sums.template load_pack<N>(row[k], d, pack[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (row[k] >= 0) sums.template add_pack<N>(row[k], d, pack[k], sum);
    }
    more = row[kAtOnce - 1] >= 0;
  }
  G* out = gradient + own_row * sums.width + d;
  for (int i = 0; i < N; ++i) {
    const float own = scale * sum[i];
    out[i] = device_common::narrow<G>(add ? device_common::widen(out[i]) + own : own);
  }
}

// Where documents are, of which those of no tokens follow all others; without, rows.
struct Places {
  const std::int32_t *starts, *lengths;
  std::int64_t documents, sequences, positions;
  std::int64_t row_positions, first_position, second_position;  // EmbeddingBackward's

  /// Positions of a whole row.
  __device__ std::int64_t row() const { return row_positions > 0 ? row_positions : positions; }
  /// Where the tokens have this position of a row; -1: nowhere.
  __device__ std::int64_t place_of(std::int64_t position) const {
    if (row_positions == 0) return position;
    const std::int64_t first = second_position > 0 ? positions / 2 : positions;
    const std::int64_t place = position - first_position, after = position - second_position;
    if (place >= 0 && place < first) return place;
    return after >= 0 && after < positions - first ? first + after : -1;
  }
  /// EmbeddingBackward::own_token.
  __device__ std::int64_t own_token(std::int64_t token) const {
    if (row_positions == 0) return token;
    const std::int64_t place = place_of(token % row_positions);
    return place >= 0 ? token / row_positions * positions + place : -1;
  }
};

template <int N, class T, class G>
__global__ void __launch_bounds__(kColumnThreads)
    sum_by_position(const device_common::EmbeddingSums<T> sums, const Places places, G* gradient) {
  const std::int64_t s = blockIdx.x;
  const std::int64_t d = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (d >= sums.width) return;
  float sum[N] = {};
  if (places.starts != nullptr) {
    const std::int64_t tokens = places.sequences * places.row();
    for (std::int64_t i = 0; i < places.documents && places.starts[i] < tokens; ++i) {
      if (s >= places.lengths[i]) continue;
      const std::int64_t own = places.own_token(places.starts[i] + s);
      if (own >= 0) sums.template add<N>(own, d, sum);
    }
  } else if (s < places.row()) {
    const std::int64_t place = places.place_of(s);
    const std::int64_t sequences = place >= 0 ? places.sequences : 0;
#pragma unroll 4
    for (std::int64_t b = 0; b < sequences; ++b) {
      sums.template add<N>(b * places.positions + place, d, sum);
    }
  }
  G* out = gradient + s * sums.width + d;
  for (int i = 0; i < N; ++i) out[i] = device_common::narrow<G>(sum[i]);
}

dim3 grid_over(std::int64_t rows, std::int64_t width, int pack) {
  return {grid_of(rows),
          grid_of(device_common::ceil_div(width, std::int64_t{pack} * kColumnThreads))};
}

// A gradient's type is f32 or that of the activations: recipes allow no other
// (engine/recipe/rules_precision.cpp), and these kernels are the longest to compile.
template <class T, class Function>
void dispatch_gradient(DType dtype, const Function& function) {
  if (dtype == DType::kF32) return function(float{});
  SHERD_CHECK(dtype == dtype_of<T>, "embedding: {} gradients of {}", name_of(dtype),
              name_of(dtype_of<T>));
  function(T{});
}

template <int N, class T>
void sum_gradients(Stream& stream, const EmbeddingBackward& args, const std::int32_t* order) {
  const std::int64_t num_tokens = args.sequences * args.positions;
  const device_common::EmbeddingSums<T> sums{args.dy.as<T>(), device_common::Mask(args.dropout),
                                             args.width};
  dispatch_gradient<T>(args.d_token_weight.dtype, [&]<class G>(G) {
    sum_by_token<N><<<grid_over(num_tokens, args.width, N), kColumnThreads, 0, handle_of(stream)>>>(
        sums, args.tokens.as<std::int32_t>(), order, num_tokens, args.rows, args.vocab_size,
        args.scale, args.add_to_token_gradient, args.d_token_weight.as<G>());
  });
  check_launch("embedding_backward");
  if (!args.d_position_weight) return;
  const Places places{args.documents.starts.as<std::int32_t>(),
                      args.documents.lengths.as<std::int32_t>(),
                      args.documents.count(),
                      args.sequences,
                      args.positions,
                      args.row_positions,
                      args.first_position,
                      args.second_position};
  dispatch_gradient<T>(args.d_position_weight.dtype, [&]<class G>(G) {
    sum_by_position<N>
        <<<grid_over(args.position_rows, args.width, N), kColumnThreads, 0, handle_of(stream)>>>(
            sums, places, args.d_position_weight.as<G>());
  });
  check_launch("embedding_backward (positions)");
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const device_common::Embed<T> work{
        .tokens = args.tokens.as<std::int32_t>(),
        .token_weight = args.token_weight.as<T>(),
        .position_weight = args.position_weight.as<T>(),
        .token_positions = args.documents.positions.as<std::int32_t>(),
        .y = args.y.as<T>(),
        .mask = device_common::Mask(args.dropout),
        .positions = args.positions,
        .width = args.width,
        .vocab_size = args.vocab_size,
        .scale = args.scale,
        .rows = args.rows};
    const bool packs = args.width % N == 0 &&
                       device_common::allow_packs(work.token_weight, work.position_weight, work.y);
    launch_flat<N>(stream, "embedding_forward", args.y.numel, packs, work);
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  const std::int64_t num_tokens = args.sequences * args.positions;
  SHERD_CHECK(args.workspace.bytes() >= device_common::token_order_bytes(num_tokens),
              "embedding: a workspace of {} bytes, {} needed", args.workspace.bytes(),
              device_common::token_order_bytes(num_tokens));
  auto* order = static_cast<std::int32_t*>(args.workspace.data);
  SHERD_CHECK(num_tokens <= 0x7fffffff, "embedding: {} tokens", num_tokens);  // places are i32
  const unsigned blocks =
      grid_of(device_common::ceil_div(num_tokens * kSharers, device_common::kThreads));
  order_by_token<<<blocks, device_common::kThreads, 0, handle_of(stream)>>>(
      args.tokens.as<std::int32_t>(), num_tokens, args.rows, args.vocab_size, order);
  check_launch("embedding_backward (order)");
  if (!args.add_to_token_gradient) fill_zero(stream, args.d_token_weight);
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const bool packs = args.width % N == 0 && device_common::allow_packs(args.dy.data);
    packs ? sum_gradients<N, T>(stream, args, order) : sum_gradients<1, T>(stream, args, order);
  });
}

}  // namespace sherd::kernels::cuda
