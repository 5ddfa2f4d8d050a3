#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sherd::optim {

double learning_rate(const LrSchedule& schedule, std::int64_t step) {
  SHERD_CHECK(step >= 0, "step is {}", step);
  const double lr = schedule.lr;
  const std::int64_t warmup = schedule.warmup_steps;
  const std::int64_t end = schedule.decay_steps;
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (schedule.type == ScheduleType::kConstant) return lr;

  const double low = lr * schedule.min_lr_ratio;
  if (step >= end) return low;
  // Here warmup <= step < end, so no denominator below is zero.
  const auto progress_from = [&](std::int64_t start) {
    return static_cast<double>(step - start) / static_cast<double>(end - start);
  };
  switch (schedule.type) {
    case ScheduleType::kConstant:
      break;
    case ScheduleType::kLinear:
      return lr - (lr - low) * progress_from(warmup);
    case ScheduleType::kCosine:
      return low + (lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * progress_from(warmup)));
    case ScheduleType::kWsd: {
      const std::int64_t stable_end = std::max(warmup, end - (2 * end + 5) / 10);
      return step < stable_end ? lr : lr - (lr - low) * progress_from(stable_end);
    }
  }
  return lr;
}

}  // namespace sherd::optim
