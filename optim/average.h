/// A copy of every slice that this rank updates, in f32, which is moved after each update
/// (optim/average_options.h has the equations). No communication.
#pragma once

#include <memory>

#include "optim/average_options.h"
#include "optim/optimizer.h"

namespace sherd::optim {

class WeightAverage {
 public:
  /// Empty if it isn't active.
  static std::vector<BufferSpec> buffers(const AverageOptions& options,
                                         const sharding::ShardingPlan& plan);
  /// Begins as the parameters are.
  WeightAverage(const AverageOptions& options, const OptimizerOptions& optimizer,
                const sharding::Rank& rank, const std::vector<sharding::UnitState>& units);

  WeightAverage(WeightAverage&&) noexcept;
  ~WeightAverage();

  /// The average is the parameters again.
  void begin(Stream& stream);
  /// After the unit's slices have been updated.
  void update(Stream& stream, int unit, std::int64_t update_number);
  /// Exchanges the unit's parameters and their average, bit for bit. Twice: as before.
  void exchange(Stream& stream, int unit);
  /// As Optimizer::moment_pieces.
  std::vector<MomentPiece> pieces() const;

 private:
  struct State;  // so that this header needs no kernels
  std::unique_ptr<State> state_;
};

}  // namespace sherd::optim
