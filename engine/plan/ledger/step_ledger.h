/// What a step would launch on GPUs, and how long that would take: the recipe's own step, run on a machine whose
/// streams keep a ledger (core/ledger.h, engine/launch/ledger_machine.h). An estimate, as good as its rates
/// (gpu_rates.h); docs/measured/gpu_log.md sets it beside what was measured.
///
/// Errors   UsageError: a recipe with a pipeline, whose ranks wait for one another in ways that one rank's ledger
///          can't tell.
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
  std::int64_t launches = 0, read = 0, written = 0;  ///< exchanges: `read` is what they complete
  double flops = 0.0, seconds = 0.0;
};

/// Of one rank, in one step.
struct StepLedger {
  std::vector<LedgerRow> rows;  ///< the longest first
  std::set<std::string>
      matmuls{};                 ///< each kind of them once (kernels/device_common/matmul_table.h)
  double seconds = 0.0;          ///< of the step, exchanges beside the computation included
  double exposed_seconds = 0.0;  ///< of it, the compute stream standing still for exchanges
  double tokens_per_s = 0.0;     ///< of all ranks
  double mfu = 0.0;              ///< of the stated peak of all ranks' GPUs

  double seconds_of(LedgerRow::Class of) const;
  /// The share of the step that is neither in matmuls nor in attention.
  double outside_products() const;
};

/// Which step of whom.
struct LedgerRequest {
  TrainingOptions options;
  sharding::Mesh mesh{};
  CudaStreamOptions stream{};
  int rank = 0;
};
StepLedger step_ledger(const LedgerRequest& request, const GpuRates& rates);
/// Of rank 0.
StepLedger step_ledger(const Recipe& recipe, const GpuRates& rates);

/// The tokens/s if one class of work were a tenth slower, or faster.
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
