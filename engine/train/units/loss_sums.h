/// Sums of token losses on a rank's device: over all tokens, and in a training over the rows of
/// each source of the data (TrainingOptions::num_loss_sources).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/exact_sum.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

class LossSums {
 public:
  LossSums(const TrainingOptions& options, const sharding::Rank& rank);

  /// Everything that the constructor acquires.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options);

  /// The source of a row of the step's batch.
  std::function<int(std::int64_t row)> source_of_row;

  /// Adds f32 losses; `first`: the sum starts with them.
  void add(const Tensor& losses, bool first);
  /// The same for rows from `first_row` of the step's batch on, each of losses.numel / num_rows
  /// tokens: each to the sum of its source. Nothing without num_loss_sources.
  void add_by_source(const Tensor& losses, std::int64_t first_row, std::int64_t num_rows,
                     bool first);

  /// The same for each of ModelShape::num_further_losses, one after the other.
  void add_further(const Tensor& losses, bool first);

  /// Block until they are available.
  ExactSum total();
  std::vector<ExactSum> further_totals();  ///< of ModelShape::num_further_losses
  std::vector<ExactSum> by_source();
  /// f32 losses in device memory.
  std::vector<float> on_host(const Tensor& losses);

 private:
  std::vector<ExactSum> read(const sharding::MirroredBuffer& sums, int count) const;

  const sharding::Rank& rank_;
  int num_sources_;
  int num_further_;
  sharding::MirroredBuffer total_, by_source_, further_;
};

}  // namespace sherd::engine
