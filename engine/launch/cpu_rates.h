/// How fast this processor runs the kernels of a step, measured in about two seconds, for
/// predictions of steps on CPUs (engine/plan/time). Kept in a file per processor, instruction set
/// and number of cores, so that it is measured once.
///
/// Kernels are timed on one core, by the processor's time, so that other programs disturb little,
/// and the best of many rounds counts. Two of them are also timed on all cores: `scaling`.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace sherd::engine {

/// Rates of one core for activations of one type.
struct CpuKernelRates {
  /// Flops per second of [n, n] matmuls over n, for n in kCpuMatmulSizes.
  std::vector<double> matmul{};
  double attention_forward = 0.0, attention_backward = 0.0;  ///< flops of visible pairs per second
  /// Bytes per second, each operand counted once.
  double elements = 0.0, norm_backward = 0.0;

  bool operator==(const CpuKernelRates&) const = default;
};
inline constexpr std::array kCpuMatmulSizes = {64, 128, 256, 512, 1024};

struct CpuRates {
  std::string processor, isa;
  int cores = 1;
  CpuKernelRates f32{}, bf16{};
  double update = 0.0, add = 0.0;  ///< bytes per second of a core: optimizer, sums of gradients
  double exchange = 0.0;           ///< bytes per second that a rank gathers from other threads
  double call = 0.0;               ///< seconds of a kernel that has next to nothing to do
  /// Rate of all cores / (cores * rate of one), of matmuls and of memory.
  double scaling = 1.0, memory_scaling = 1.0;

  bool operator==(const CpuRates&) const = default;
};

CpuRates measure_cpu_rates();

std::string cpu_rates_text(const CpuRates& rates);  ///< lines of `sherd info --rates`
std::string cpu_rates_json(const CpuRates& rates);
/// Nothing if `json` isn't what cpu_rates_json writes.
bool read_cpu_rates(const std::string& json, CpuRates& rates);

/// The measured rates of this machine: from their file, or measured and written there. SHERD_RATES
/// names the file; otherwise it is in $XDG_CACHE_HOME/sherd or ~/.cache/sherd. A file that can't be
/// read or written is no error: rates are measured again.
CpuRates cpu_rates(bool measure_again = false);
/// Those of the file; nothing if there is none for this processor.
std::optional<CpuRates> known_cpu_rates();

}  // namespace sherd::engine
