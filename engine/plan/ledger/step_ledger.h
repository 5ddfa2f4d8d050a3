/// What a step would launch on GPUs, and how long it would take. The recipe's own step runs on a
/// machine whose streams keep a ledger (core/ledger.h, engine/launch/ledger_machine.h). The
/// estimate is as good as its rates (gpu_rates.h); docs/measured/gpu_log.md compares it with
/// measurements.
///
/// Errors   UsageError: a recipe with a pipeline, since one rank's ledger doesn't show when its
///          ranks wait for each other.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/plan/ledger/gpu_rates.h"
#include "engine/recipe/recipe.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/mesh.h"

namespace sherd::engine {

/// All launches of one name.
struct LedgerRow {
  enum class Class { kMatmul, kAttention, kMemory, kExchange };

  std::string name;
  Class of = Class::kMemory;
  std::int64_t launches = 0, read = 0, written = 0;  ///< for exchanges, `read` is the full size
  double flops = 0.0, seconds = 0.0;
};

/// Of one rank, in one step.
struct StepLedger {
  std::vector<LedgerRow> rows;      ///< the longest first
  std::set<std::string> matmuls{};  ///< each kind once (kernels/device_common/matmul_table.h)
  double seconds = 0.0;             ///< of the step, including overlapped exchanges
  double exposed_seconds = 0.0;     ///< of these, the compute stream waits for exchanges
  double tokens_per_s = 0.0;        ///< of all ranks
  double mfu = 0.0;                 ///< of the stated peak of all ranks' GPUs

  double seconds_of(LedgerRow::Class of) const;
  /// The share of the step outside matmuls and attention.
  double outside_products() const;
};

/// The step and rank to record.
struct LedgerRequest {
  TrainingOptions options;
  sharding::Mesh mesh{};
  CudaStreamOptions stream{};
  int rank = 0;
};
StepLedger step_ledger(const LedgerRequest& request, const GpuRates& rates);
/// The ledger of rank 0.
StepLedger step_ledger(const Recipe& recipe, const GpuRates& rates);

/// Tokens/s if one class of work were a tenth slower, or faster.
struct Sensitivity {
  std::string of;
  double slower = 0.0, faster = 0.0;
};
std::vector<Sensitivity> sensitivities(const Recipe& recipe, const GpuRates& rates);

/// What `sherd plan --ledger` prints.
std::string ledger_text(const Recipe& recipe);
/// The same figures as one object; ends with a newline.
std::string ledger_json(const Recipe& recipe);

}  // namespace sherd::engine
