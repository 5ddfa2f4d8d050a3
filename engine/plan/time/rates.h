/// How fast a device and its links are. A step's time (step_time.h) asks nothing else.
#pragma once

#include <string>
#include <vector>

#include "core/ledger.h"
#include "engine/launch/cpu_rates.h"
#include "engine/plan/ledger/gpu_rates.h"
#include "engine/recipe/cluster_file.h"

namespace sherd::engine {

/// A push or pull (sharding/zero/owner_exchange.h): each worker exchanges `bytes` with all servers
/// together, and each server its keys with all workers.
struct ServerExchange {
  double bytes = 0.0, bytes_of_a_server = 0.0;
  double partners = 0.0;  ///< of the rank that has more of them
};

class StepRates {
 public:
  virtual ~StepRates() = default;
  virtual double seconds(const Launch& launch) const = 0;
  virtual double seconds(const GroupExchange& exchange) const = 0;
  virtual double seconds(const ServerExchange& exchange) const = 0;
  virtual double host_seconds_of_a_call() const = 0;
  /// Share of its rate that computation loses during an exchange.
  virtual double taken_by_exchanges() const = 0;
  /// Of offloaded state, read and written together, per second and rank: an assumption.
  virtual double disk_bytes() const { return 2e9; }
  /// Of the host's memory, if its cores update a GPU's state; likewise.
  virtual double host_memory_bytes() const { return 10e9; }

  std::string name;
  double stated_flops = 0.0;           ///< the reference for MFU; 0: unknown
  std::vector<std::string> assumed{};  ///< what was never measured, for the report
};

/// Of GPUs. The shares of gpu_rates.h are for kernels alone; `trained_gpu` has those of whole steps.
class GpuStepRates final : public StepRates {
 public:
  GpuStepRates(GpuRates rates, bool allow_tf32);
  double seconds(const Launch& launch) const override { return rates_.seconds(launch, tf32_); }
  double seconds(const GroupExchange& exchange) const override { return rates_.seconds(exchange); }
  /// A failed check: parameter servers are for CPUs.
  double seconds(const ServerExchange& exchange) const override;
  double host_seconds_of_a_call() const override { return kHostSecondsOfACall; }
  double taken_by_exchanges() const override { return kTakenByExchanges; }
  double disk_bytes() const override { return 2.0 * rates_.links.host; }
  double host_memory_bytes() const override { return rates_.links.host_memory; }

 private:
  GpuRates rates_;
  bool tf32_;
};

struct CpuLinks {
  bool servers_elsewhere = false;  ///< not in the workers' process
  bool passed_on = true;  ///< a gathered slice crosses to a machine once (machine_traffic.h)
  /// If a machine adds its ranks' parts of a sum before they cross: bytes that cross for a byte of a
  /// part, of the type in which gradients are reduced. 0: each part crosses.
  double of_added = 0.0;
  ClusterLink within{}, between{}, servers{};
};

/// Of a rank on CPUs. Exchanges within a machine are those of the link if it is given, else those
/// between threads of a process; between machines, and with servers elsewhere, those of the links if
/// they are given, else an assumption.
class CpuStepRates final : public StepRates {
 public:
  struct Ranks {
    int here = 1;     ///< that share the cores
    int threads = 1;  ///< of each
  };
  CpuStepRates(CpuRates rates, Ranks ranks, const CpuLinks& links = {});
  double seconds(const Launch& launch) const override;
  double seconds(const GroupExchange& exchange) const override;
  double seconds(const ServerExchange& exchange) const override;
  double host_seconds_of_a_call() const override { return 0.0; }  ///< part of each kernel's time
  double taken_by_exchanges() const override;

 private:
  CpuRates rates_;
  double cores_ = 1.0;                           ///< that a rank has
  double scaling_ = 1.0, memory_scaling_ = 1.0;  ///< of them together, with the other ranks'
  CpuLinks links_;
};

/// The same rates with the shares that whole steps reach, when clocks drop under load: fitted to
/// the tables that tests/engine/plan/time/choose_tables.py gives for tuning, and to no other.
GpuRates trained_gpu(GpuRates rates);

}  // namespace sherd::engine
