/// Measured rates of GPUs, the table used by `sherd plan --ledger`. Every row of gpu_rates.cpp
/// names its source; unmeasured values are marked as assumptions.
#pragma once

#include <string>
#include <string_view>

#include "core/ledger.h"

namespace sherd::engine {

/// What a rank's links carry, bytes per second and direction.
struct GpuLinks {
  double all_reduce = 480e9;  ///< bus bandwidth of large all-reduces within a machine
  double one_way = 360e9;     ///< of large all-gathers and reduce-scatters there
  double pair = 396e9;        ///< between two ranks of a machine
  double host = 50e9;         ///< each way, from and to the host's memory: 16 lanes of PCIe 5
  double host_memory = 50e9;  ///< a rank's share of it, read and written: assumed, 8 of 400 GB/s
  double card = 50e9;         ///< a rank's share of its machine's network cards
  double card_share = 0.74;   ///< of it that large collectives reach
  double latency = 13e-6;     ///< seconds of the smallest collective within a machine
  double far_latency = 6e-6;  ///< of each step of a ring through several machines
};

/// A collective of `ranks` ranks on `machines` machines, equally many on each.
struct GroupExchange {
  std::string_view collective;
  double bytes = 0.0;  ///< of the full tensor
  double ranks = 1.0, machines = 1.0;
  /// Ranks of a machine that are in such a collective at the same time, in this group or others.
  double at_once = 1.0;
};

struct GpuRates {
  std::string name;
  double stated_flops = 0.0;  ///< dense bf16, the reference for MFU
  double matmul_flops = 0.0;  ///< of the best shapes in 16 bits
  double tf32_flops = 0.0, f32_flops = 0.0;
  double copy_bytes = 0.0;  ///< per second, read and written together
  double multiprocessors = 132.0;
  std::int64_t memory_bytes = 0;
  GpuLinks links{};

  /// Factors for each class of work, to find out which ones the answer depends on.
  double matmul_share = 1.0, attention_share = 1.0, memory_share = 1.0, exchange_share = 1.0;

  double seconds(const Launch& launch, bool allow_tf32) const;
  /// With this many ranks per machine; the first ranks are on the first machine.
  double seconds(const Exchange& exchange, int ranks_per_machine = 8) const;
  double seconds(const GroupExchange& exchange) const;
};

GpuRates h100_rates();
GpuRates h200_rates();
GpuRates a100_rates();  ///< 80 GB

/// Host time of a launch: 3 to 5 microseconds if work isn't captured (PARALLELISM.md E.5,
/// recalled).
inline constexpr double kHostSecondsOfACall = 4e-6;
/// Fraction of its rate that computation loses during a collective, to the multiprocessors that
/// NCCL uses (Calculon's a100_80g.json: 15 % on NVLink).
inline constexpr double kTakenByExchanges = 0.15;

}  // namespace sherd::engine
