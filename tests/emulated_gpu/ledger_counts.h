/// What a step launches on the emulated GPU, and what its ledger says.
#pragma once

#include "engine/plan/ledger/step_ledger.h"
#include "tests/emulated_gpu/launch_counts.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

using emulated::LaunchCounts;

inline LaunchCounts launched_by(const engine::TrainingOptions& options, const RunShape& setup,
                                int steps) {
  const LaunchCounts before = emulated::launch_counts();
  train(options, setup, steps);
  LaunchCounts after = emulated::launch_counts();
  for (const auto& [kernel, count] : before) after[kernel] -= count;
  return after;
}

// One step's: whatever a run does once is in both runs.
inline LaunchCounts launched_in_a_step(const engine::TrainingOptions& options,
                                       const RunShape& setup) {
  const LaunchCounts one = launched_by(options, setup, 1);
  LaunchCounts counts = launched_by(options, setup, 2);
  for (const auto& [kernel, count] : one) counts[kernel] -= count;
  std::erase_if(counts, [](const auto& row) { return row.second == 0; });
  return counts;
}

// The launches of all ranks.
inline LaunchCounts in_the_ledger(const engine::TrainingOptions& options, const RunShape& setup) {
  LaunchCounts counts;
  for (int rank = 0; rank < mesh_of(setup).world_size(); ++rank) {
    const engine::StepLedger step = engine::step_ledger(
        {applied(options, setup), mesh_of(setup), {}, rank}, engine::h100_rates());
    for (const engine::LedgerRow& row : step.rows) {
      if (row.of != engine::LedgerRow::Class::kExchange) counts[row.name] += row.launches;
    }
  }
  // Matmuls are a library's, the others the driver's.
  for (const char* other :
       {"linear_forward", "linear_backward_input", "linear_backward_weight",
        "experts (grouped products)", "fill_zero", "copy", "copy to or from the host"}) {
    counts.erase(other);
  }
  return counts;
}

// Of 8 experts in every second layer, in 16 bits.
inline engine::TrainingOptions expert_training(bool grouped) {
  model::ModelShape shape = shape_named(expert_forms(), "experts");
  shape.dtype = DType::kBF16;
  shape.dropout = 0.0;
  shape.query_heads = 3;
  shape.kv_heads = 1;
  shape.moe.experts = 8;
  shape.moe.ffn_width = 16;
  shape.moe.grouped = grouped;
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.precision = {DType::kBF16, DType::kF32, DType::kF32};
  return options;
}

inline std::string text_of(const LaunchCounts& counts) {
  std::string text;
  for (const auto& [kernel, count] : counts) text += fmt::format("{} {}\n", kernel, count);
  return text;
}

}  // namespace sherd::testing
