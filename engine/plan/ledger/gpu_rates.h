/// How fast a GPU is, as far as anybody has measured it: the table behind `sherd plan --ledger`. Every row of
/// gpu_rates.cpp names its source; what nobody measured is called an assumption.
#pragma once

#include <string>
#include <string_view>

#include "core/ledger.h"

namespace sherd::engine {

struct GpuRates {
  std::string name;
  double stated_flops = 0.0;  ///< dense bf16, of which MFU is a share
  double matmul_flops = 0.0;  ///< of the best shapes in 16 bits
  double tf32_flops = 0.0, f32_flops = 0.0;
  double copy_bytes = 0.0;  ///< per second, read and written together

  /// What each class of work is multiplied with, to see what the answer hangs on.
  double matmul_share = 1.0, attention_share = 1.0, memory_share = 1.0, exchange_share = 1.0;

  double seconds(const Launch& launch, bool allow_tf32) const;
  /// With so many ranks to a machine, the first ones on the first.
  double seconds(const Exchange& exchange, int ranks_per_machine = 8) const;
};

GpuRates h100_rates();
GpuRates h200_rates();

/// Of a launch, on the host: 3 to 5 microseconds where work isn't captured (PARALLELISM.md E.5, recalled).
inline constexpr double kHostSecondsOfACall = 4e-6;
/// Computation beside a collective loses so much of its rate: the multiprocessors that NCCL takes (Calculon's
/// a100_80g.json: 15 % on NVLink).
inline constexpr double kTakenByExchanges = 0.15;

}  // namespace sherd::engine
