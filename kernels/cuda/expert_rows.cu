// T tokens, k choices of each, E experts, D width, F width of an expert.
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/warp_sum.cuh"
#include "kernels/device_common/columns.h"
#include "kernels/device_common/experts.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::allow_packs;
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

/// A warp's row.
template <class T>
struct WeighRow {
  const std::int32_t *token, *row;  // null: numbers of rows, not of choices
  std::int64_t first, count, width;
  int per_token;
  const float* weights;
  float* d_weights;
  T *activated, *d_activated;
};

template <class T>
__global__ void __launch_bounds__(kWeighThreads) weigh_expert_rows(const WeighRow<T> args) {
  const std::int64_t own =
      static_cast<std::int64_t>(blockIdx.x) * (kWeighThreads / 32) + threadIdx.x / 32;
  if (own >= args.count) return;  // a whole warp
  std::int64_t choice = args.first + own;
  if (args.token != nullptr) {
    choice = args.token[args.first + own] * static_cast<std::int64_t>(args.per_token);
    while (args.row[choice] != args.first + own) ++choice;
  }
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

}  // namespace

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
                 const RowRange& range, const ConstTensor& x, const Tensor& out) {
  const std::int32_t* token = Order(shape, order).token + range.first;
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
  const bool ordered = static_cast<bool>(args.order);
  const Order order(args.shape, args.order);
  dispatch_float(args.activated.dtype, [&]<class T>(T) {
    const WeighRow<T> work{ordered ? order.token : nullptr,
                           ordered ? order.row : nullptr,
                           args.range.first,
                           args.range.count,
                           args.shape.ffn_width,
                           args.shape.per_token,
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
