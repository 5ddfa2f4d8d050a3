/// What ranks compute on, as a recipe asks: this machine's processor or its GPUs.
#pragma once

#include <functional>
#include <string>

#include "core/memory_plan.h"
#include "engine/launch.h"
#include "engine/recipe.h"

namespace sherd::engine {

using PlanOfRank = std::function<MemoryPlan(int r)>;

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  /// Its memory isn't the host's: ranks have a plan for either.
  bool separate_memory = false;
  /// Lets `launch` run on it: device, streams, and memory from the plans (`host` where it is
  /// apart).
  std::function<void(LaunchOptions& launch, PlanOfRank device, PlanOfRank host)> use_for;
  bool measures_rates = true;  ///< a run measures its product rate first
};

/// What `run.device` means on this machine; auto takes a GPU if there is one that this program can
/// use. Doesn't ask whether what is named exists: plans are made on machines without it.
DeviceKind device_kind(const Recipe& recipe);

/// Errors   UsageError: the recipe wants a GPU and there is none, or fewer than ranks.
Device choose_device(const Recipe& recipe);

/// Ranks, threads, streams' options: everything of a launch but its memory.
LaunchOptions launch_options(const Recipe& recipe);

/// "2 ranks with 4 compute threads each on 8 cores", "2 ranks on a GPU each: NVIDIA H200".
std::string device_line(const LaunchOptions& launch);

/// Floating-point operations per second that the maker states for dense products of `dtype`
/// (f32: in TF32 if allowed), 0 where we don't know. Source: the datasheets of A100, H100 and H200.
double dense_peak(const std::string& gpu_name, DType dtype, bool allow_tf32);

/// The two yardsticks of a run's rate, over all its ranks; 0: not known.
struct ProductRates {
  double measured = 0.0;  ///< of large products through the model's own kernel, just now
  double stated = 0.0;    ///< dense_peak of the GPUs
};
/// Takes about 0.1 s. GPUs: 700 MiB of the first one's memory meanwhile.
ProductRates product_rates(const Recipe& recipe, const LaunchOptions& launch);

}  // namespace sherd::engine
