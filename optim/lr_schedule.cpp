#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sherd::optim {
namespace {

// What is left of lr - low after the share r of the decay.
double share_left(DecayShape shape, double r) {
  switch (shape) {
    case DecayShape::kLinear:
      break;
    case DecayShape::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * r));
    case DecayShape::kExponential:
      return 2 * std::exp2(-r) - 1;
    case DecayShape::kMinusSqrt:
      return 1 - std::sqrt(r);
  }
  return 1 - r;
}

}  // namespace

double learning_rate(const LrSchedule& schedule, std::int64_t step) {
  SHERD_CHECK(step >= 0, "step is {}", step);
  const double lr = schedule.lr;
  const std::int64_t warmup = schedule.warmup_steps;
  const std::int64_t end = schedule.decay_steps;
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (schedule.type == ScheduleType::kConstant) return lr;

  const double low = lr * schedule.min_lr_ratio;
  if (schedule.type == ScheduleType::kInverseSqrt) {
    const double share = static_cast<double>(warmup + 1) / static_cast<double>(step + 1);
    return std::max(low, lr * std::sqrt(share));
  }
  if (step >= end) return low;
  // Here warmup <= step < end, so no denominator below is zero.
  const auto progress_from = [&](std::int64_t start) {
    return static_cast<double>(step - start) / static_cast<double>(end - start);
  };
  switch (schedule.type) {
    case ScheduleType::kConstant:
    case ScheduleType::kInverseSqrt:
      break;
    case ScheduleType::kLinear:
      return lr - (lr - low) * progress_from(warmup);
    case ScheduleType::kCosine:
      return low + (lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * progress_from(warmup)));
    case ScheduleType::kWsd: {
      const std::int64_t stable_end = std::max(warmup, end - schedule.wsd_decay_steps);
      if (step < stable_end) return lr;
      const double r = progress_from(stable_end);
      if (schedule.wsd_decay_shape == DecayShape::kLinear) return lr - (lr - low) * r;
      return low + (lr - low) * share_left(schedule.wsd_decay_shape, r);
    }
  }
  return lr;
}

}  // namespace sherd::optim
