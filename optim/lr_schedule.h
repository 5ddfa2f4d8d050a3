/// The learning rate as a pure function of the step, so that a resumed run needs no schedule state.
///
/// Step s counts from 0, W = warmup_steps, N = decay_steps, low = min_lr_ratio * lr:
///
///   s < W       all types     lr * (s + 1) / (W + 1)                 linear warm-up, never zero
///   W <= s < N  constant      lr
///               linear        lr - (lr - low) * p
///               cosine        low + (lr - low) * (1 + cos(pi * p)) / 2
///                             where p = (s - W) / (N - W)
///               wsd           lr until step M = max(W, N - wsd_decay_steps), then
///                             low + (lr - low) * c(r) with r = (s - M) / (N - M):
///                               linear       1 - r
///                               cosine       (1 + cos(pi * r)) / 2
///                               exponential  2 * 0.5^r - 1
///                               minus_sqrt   1 - sqrt(r)
///               inverse_sqrt  max(low, lr * sqrt((W + 1) / (s + 1))), before and after N
///   s >= N      constant      lr; linear, cosine and wsd: low
///
/// Step W is the first at full rate. Megatron's warm-up begins with 0, so it is one step later.
///
/// Sources    warm-up and cosine as in nanoGPT's `get_lr` (cosine: Loshchilov & Hutter 2017, arXiv
///            1608.03983, without restarts). wsd (warm-up, stable, decay) as in MiniCPM, Hu et al.
///            2024, arXiv 2404.06395. Hägele et al. 2024, arXiv 2405.18392, found linear decay over
///            the last fifth as good as cosine, and 1 - sqrt better. The shapes are Megatron's
///            lr_wsd_decay_style. inverse_sqrt: Vaswani et al. 2017, arXiv 1706.03762, section 5.3.
/// Rounding   everything in double.
/// Errors     none: the recipe has checked the ranges. A negative step is our bug (SHERD_CHECK).
#pragma once

#include <cstdint>

namespace sherd::optim {

enum class ScheduleType { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
/// Of the rate at the end of wsd.
enum class DecayShape { kLinear, kCosine, kExponential, kMinusSqrt };

/// How the rate follows the batch size, if stages of the data change it: as its ratio to the
/// recipe's own, the ratio's square root, or not at all.
enum class BatchSizeScaling { kNone, kLinear, kSquareRoot };

struct LrSchedule {
  ScheduleType type = ScheduleType::kConstant;
  double lr = 0;                  ///< the highest rate
  std::int64_t warmup_steps = 0;  ///< W
  std::int64_t decay_steps = 0;   ///< N; unused by `constant`
  double min_lr_ratio = 0;        ///< low / lr; unused by `constant`
  DecayShape wsd_decay_shape = DecayShape::kLinear;
  std::int64_t wsd_decay_steps = 0;
};

double learning_rate(const LrSchedule& schedule, std::int64_t step);

}  // namespace sherd::optim
