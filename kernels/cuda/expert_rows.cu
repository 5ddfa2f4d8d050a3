// T tokens, k choices of each, E experts, D width, F width of an expert.
#include <algorithm>
#include "kernels/cuda/expert_kernels.h"

#include "kernels/cuda/warp_sum.cuh"
#include "kernels/device_common/columns.h"
#include "kernels/device_common/experts.h"
#include "kernels/expert_pieces.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::allow_packs;
using device_common::ChoiceOfRow;
using device_common::pack_of;

constexpr int kOrderThreads = device_common::kThreads;
constexpr int kWeighThreads = 128;

/// The arrays in experts_order_numel numbers.
struct Order {
  const std::int32_t *token, *row, *begin;

  Order(const ExpertsShape& shape, const ConstTensor& order)
      : token(order.as<std::int32_t>()),
        row(token + shape.tokens * shape.per_token),
        begin(row + shape.tokens * shape.per_token) {}
};

// A block orders an expert's rows: each thread a run of choices, which it counts, and then writes
// after those of the threads before it. Nothing depends on which thread is first.
__global__ void __launch_bounds__(kOrderThreads)
    order_expert_rows(const std::int32_t* expert, std::int64_t choices, int per_token,
                      std::int32_t* token, std::int32_t* row, std::int32_t* begin,
                      std::int32_t* counts_out) {
  __shared__ std::int32_t counts[kOrderThreads], scratch[32];
  const auto own_expert = static_cast<std::int32_t>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const device_common::ChoiceRun run = device_common::run_of(choices, thread, kOrderThreads);
  std::int32_t lower = 0, own = 0;
  for (std::int64_t i = run.first; i < run.last; ++i) {
    const std::int32_t e = expert[i];
    lower += e >= 0 && e < own_expert;
    own += e == own_expert;
    if (e < 0 && own_expert == 0) row[i] = -1;
  }
  counts[thread] = own;
  const std::int32_t first = block_sum(lower, scratch);  // waits for the counts too
  std::int32_t place = first;
  for (int i = 0; i < thread; ++i) place += counts[i];
  if (thread == 0) begin[own_expert] = first;
  if (thread == kOrderThreads - 1 && blockIdx.x == gridDim.x - 1) {
    begin[own_expert + 1] = place + own;
  }
  if (thread == kOrderThreads - 1 && counts_out != nullptr) {
    counts_out[own_expert] = place + own - first;
  }
  for (std::int64_t i = run.first; own > 0 && i < run.last; ++i) {
    if (expert[i] != own_expert) continue;
    token[place] = static_cast<std::int32_t>(i / per_token);
    row[i] = place++;
  }
}

ChoiceOfRow choice_of_row(const ExpertsShape& shape, const ConstTensor& order, std::int64_t first) {
  if (!order) return {nullptr, nullptr, first, shape.per_token};
  const Order of(shape, order);
  return {of.token, of.row, first, shape.per_token};
}

/// A warp's row.
template <class T>
struct WeighRow {
  ChoiceOfRow choice_of;
  std::int64_t count, width;
  const float* weights;
  float* d_weights;
  T *activated, *d_activated;
};

template <class T>
__global__ void __launch_bounds__(kWeighThreads) weigh_expert_rows(const WeighRow<T> args) {
  const std::int64_t own =
      static_cast<std::int64_t>(blockIdx.x) * (kWeighThreads / 32) + threadIdx.x / 32;
  if (own >= args.count) return;  // a whole warp
  const std::int64_t choice = args.choice_of(own);
  const float weight = args.weights[choice];
  T* a = args.activated + own * args.width;
  T* d_a = args.d_activated + own * args.width;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x % 32; i < args.width; i += 32) {
    const float value = device_common::widen(a[i]), gradient = device_common::widen(d_a[i]);
    sum += value * gradient;
    a[i] = device_common::narrow<T>(value * weight);
    d_a[i] = device_common::narrow<T>(gradient * weight);
  }
  sum = lane_sum(sum);
  if (threadIdx.x % 32 == 0) args.d_weights[choice] = sum;
}

/// Runs of experts (kernels/expert_pieces.h), in rows of the round.
struct RunsOfALaunch {
  struct Run {
    std::int32_t expert, begins;
    std::int64_t first, count;
  } run[device_common::kRunsOfALaunch];
};

/// Calls `launch(runs, number of them, rows of the longest)` for all, a launch's at a time.
template <class Launch>
void for_runs(const std::vector<ExpertPiece>& pieces, const RowRange& range, const Launch& launch) {
  const std::vector<ExpertRun> all = expert_runs(pieces);
  for (std::size_t begin = 0; begin < all.size(); begin += device_common::kRunsOfALaunch) {
    const std::size_t count =
        std::min<std::size_t>(all.size() - begin, device_common::kRunsOfALaunch);
    RunsOfALaunch runs{};
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const ExpertRun& run = all[begin + i];
      runs.run[i] = {static_cast<std::int32_t>(run.expert), run.begins ? 1 : 0,
                     run.rows.first - range.first, run.rows.count};
      longest = std::max(longest, run.rows.count);
    }
    launch(runs, static_cast<unsigned>(count), longest);
  }
}

// A warp has a row; blockIdx.y is its run.
template <class T>
__global__ void __launch_bounds__(kWeighThreads)
    second_bias(const RunsOfALaunch runs, const ChoiceOfRow choice_of, const T* dy, const T* bias,
                std::int64_t width, float* d_weights) {
  const RunsOfALaunch::Run& run = runs.run[blockIdx.y];
  const std::int64_t of_run =
      static_cast<std::int64_t>(blockIdx.x) * (kWeighThreads / 32) + threadIdx.x / 32;
  if (of_run >= run.count) return;  // a whole warp
  const std::int64_t row = run.first + of_run;
  const float sum = lane_dot(dy + row * width, bias + run.expert * width, width);
  if (threadIdx.x % 32 == 0) d_weights[choice_of(row)] += sum;
}

// A thread has a column of one expert's rows; blockIdx.y is its run.
template <class T, class Gradient>
__global__ void __launch_bounds__(device_common::kThreads)
    bias_gradient(const RunsOfALaunch runs, const ChoiceOfRow choice_of, const float* weights,
                  const T* rows, std::int64_t width, bool adds, Gradient* gradient) {
  __shared__ float weight[kExpertPiece];
  const RunsOfALaunch::Run& run = runs.run[blockIdx.y];
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x) * device_common::kThreads + threadIdx.x;
  Gradient* to = gradient + run.expert * width + column;
  for (std::int64_t piece = 0; piece < run.count; piece += kExpertPiece) {
    const T* of_piece = rows + (run.first + piece) * width + column;
    const std::int64_t left = run.count - piece, count = left < kExpertPiece ? left : kExpertPiece;
    __syncthreads();  // whoever still reads the last piece's weights
    for (std::int64_t r = threadIdx.x; r < count; r += device_common::kThreads) {
      weight[r] = weights != nullptr ? weights[choice_of(run.first + piece + r)] : 1.0f;
    }
    __syncthreads();
    if (column >= width) continue;
    float sum = 0.0f;
#pragma unroll 8
    for (std::int64_t r = 0; r < count; ++r) {
      sum += weight[r] * device_common::widen(of_piece[r * width]);
    }
    if (adds || piece > 0 || run.begins == 0) sum += device_common::widen(*to);
    *to = device_common::narrow<Gradient>(sum);
  }
}

// A warp has a choice.
template <class T>
__global__ void __launch_bounds__(kWeighThreads)
    input_weights(const std::int32_t* row_of, std::int64_t choices, int per_token, RowRange range,
                  const T* rows, const T* x, std::int64_t width, bool clears, float* d_weights) {
  const std::int64_t choice =
      static_cast<std::int64_t>(blockIdx.x) * (kWeighThreads / 32) + threadIdx.x / 32;
  if (choice >= choices) return;  // a whole warp
  const std::int64_t row = row_of[choice] - range.first;
  const bool here = row_of[choice] >= 0 && row >= 0 && row < range.count;
  const float sum =
      here ? lane_dot(rows + row * width, x + choice / per_token * width, width) : 0.0f;
  if (threadIdx.x % 32 == 0 && (here || clears)) d_weights[choice] = sum;
}

}  // namespace

void gradients_of_input_weights(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                                const RowRange& range, const ConstTensor& rows,
                                const ConstTensor& x, bool clears, const Tensor& d_weights) {
  const std::int64_t choices = shape.tokens * shape.per_token;
  dispatch_float(x.dtype, [&]<class T>(T) {
    input_weights<<<grid_of(device_common::ceil_div(choices, kWeighThreads / 32)), kWeighThreads, 0,
                    handle_of(stream)>>>(Order(shape, order).row, choices, shape.per_token, range,
                                         rows.as<T>(), x.as<T>(), shape.width, clears,
                                         d_weights.as<float>());
  });
  check_launch("experts (input weights)");
}

void add_second_bias(Stream& stream, const std::vector<ExpertPiece>& pieces, const RowRange& range,
                     const WeightsOfRows& weights, const ConstTensor& dy, const ConstTensor& bias,
                     const Tensor& d_weights) {
  const ChoiceOfRow choice_of =
      choice_of_row(weights.shape, weights.order, weights.order ? range.first : 0);
  for_runs(pieces, range, [&](const RunsOfALaunch& runs, unsigned count, std::int64_t longest) {
    const dim3 grid(grid_of(device_common::ceil_div(longest, kWeighThreads / 32)), count);
    dispatch_float(dy.dtype, [&]<class T>(T) {
      second_bias<<<grid, kWeighThreads, 0, handle_of(stream)>>>(
          runs, choice_of, dy.as<T>(), bias.as<T>(), weights.shape.width, d_weights.as<float>());
    });
    check_launch("experts (second bias)");
  });
}

void add_bias_gradient(Stream& stream, const std::vector<ExpertPiece>& pieces,
                       const RowRange& range, const WeightsOfRows& weights, const ConstTensor& rows,
                       std::int64_t width, bool adds, const Tensor& gradient) {
  const ChoiceOfRow choice_of =
      choice_of_row(weights.shape, weights.order, weights.order ? range.first : 0);
  for_runs(pieces, range, [&](const RunsOfALaunch& runs, unsigned count, std::int64_t) {
    const dim3 grid(grid_of(device_common::ceil_div(width, device_common::kThreads)), count);
    dispatch_float(rows.dtype, [&]<class T>(T) {
      dispatch_float(gradient.dtype, [&]<class Gradient>(Gradient) {
        bias_gradient<<<grid, device_common::kThreads, 0, handle_of(stream)>>>(
            runs, choice_of, weights.weights.as<float>(), rows.as<T>(), width, adds,
            gradient.as<Gradient>());
      });
    });
    check_launch("experts (bias gradient)");
  });
}

void order_by_expert(Stream& stream, const ExpertsShape& shape, const ConstTensor& chosen,
                     const Tensor& order, const Tensor& counts) {
  auto* token = order.as<std::int32_t>();
  const std::int64_t choices = shape.tokens * shape.per_token;
  order_expert_rows<<<grid_of(shape.experts), kOrderThreads, 0, handle_of(stream)>>>(
      chosen.as<std::int32_t>(), choices, shape.per_token, token, token + choices,
      token + 2 * choices, counts.as<std::int32_t>());
  check_launch("experts (order)");
}

void gather_rows(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                 const RowRange& range, const WeightsOfRows& weights, const ConstTensor& x,
                 const Tensor& out) {
  const std::int32_t* token = Order(shape, order).token + range.first;
  if (weights.weights) {
    return dispatch_float(x.dtype, [&]<class T>(T) {
      launch_flat<1>(stream, "experts (gather)", range.count * shape.width, false,
                     device_common::GatherWeighedRows<T>{
                         x.as<T>(), token, choice_of_row(shape, weights.order, range.first),
                         weights.weights.as<float>(), shape.width, out.as<T>()});
    });
  }
  const auto gather = [&]<class T>(T, std::int64_t width) {
    launch_flat<1>(stream, "experts (gather)", range.count * width, false,
                   device_common::GatherRows<T>{static_cast<const T*>(x.data), token, width,
                                                static_cast<T*>(out.data)});
  };
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  const auto* from = static_cast<const char*>(x.data);
  if (shape.width * size % 16 == 0 && allow_packs(from, static_cast<char*>(out.data))) {
    return gather(device_common::Words{}, shape.width * size / 16);
  }
  dispatch_float(x.dtype, [&]<class T>(T zero) { gather(zero, shape.width); });
}

void combine_rows(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                  const RowRange& range, const ConstTensor& rows, const ConstTensor& weights,
                  const Tensor& sums) {
  dispatch_float(rows.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const device_common::CombineRows<T> work{Order(shape, order).row,
                                             rows.as<T>(),
                                             weights.as<float>(),
                                             range.first,
                                             range.count,
                                             shape.width,
                                             shape.per_token,
                                             sums.as<float>()};
    launch_flat<N>(stream, "experts (combine)", sums.numel,
                   shape.width % N == 0 && allow_packs(work.rows, work.sums), work);
  });
}

void move_choices(Stream& stream, const ExpertChoices& args, bool to_rows) {
  const std::int32_t* row = Order(args.shape, args.order).row;
  if (to_rows) {
    launch_flat<1>(stream, "experts (choices)", args.from.numel, false,
                   device_common::ChoicesToRows{row, args.from.as<float>(), args.to.as<float>()});
  } else {
    launch_flat<1>(stream, "experts (choices)", args.to.numel, false,
                   device_common::RowsToChoices{row, args.from.as<float>(), args.to.as<float>()});
  }
}

void finish_sums(Stream& stream, const ConstTensor& sums, const ConstTensor& more,
                 const ConstTensor& shared, const Tensor& y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const device_common::FinishSums<T> work{sums.as<float>(), more.as<float>(), shared.as<T>(),
                                            y.as<T>()};
    launch_flat<N>(stream, "experts (finish)", y.numel,
                   allow_packs(work.sums, work.more, work.shared, work.y), work);
  });
}

void weigh_rows(Stream& stream, const WeighRows& args) {
  if (args.range.count == 0) return;
  dispatch_float(args.activated.dtype, [&]<class T>(T) {
    const WeighRow<T> work{choice_of_row(args.shape, args.order, args.range.first),
                           args.range.count,
                           args.shape.ffn_width,
                           args.weights.as<float>(),
                           args.d_weights.as<float>(),
                           args.activated.as<T>(),
                           args.d_activated.as<T>()};
    weigh_expert_rows<<<grid_of(device_common::ceil_div(args.range.count, kWeighThreads / 32)),
                        kWeighThreads, 0, handle_of(stream)>>>(work);
  });
  check_launch("experts (weigh)");
}

}  // namespace sherd::kernels::cuda
