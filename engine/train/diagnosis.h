/// Why a step's loss or gradient isn't finite: which tensor of which unit, whose slice, and on
/// which rank it arose first. Used by a run that is about to stop, and in a shorter form by a step
/// that is skipped.
///
/// The reduced gradient shows the tensor and its owner, but not the origin, since it is a sum over
/// ranks. So the step is replayed, and every rank checks its own gradient before each reduction.
/// Data, dropout and parameters are the same, so the same value arises again.
#pragma once

#include <cstdint>
#include <string>

#include "engine/train/sharded_model.h"
#include "sharding/mesh/exchange.h"

namespace sherd::sharding {
enum class UnitEnd;
}

namespace sherd::engine {

class Diagnosis {
 public:
  struct Finding {
    double order = -1.0;  ///< -1: nothing found; otherwise the number of checks before it
    double unit = -1.0;
    double parameter = -1.0;
    double element = -1.0;

    bool found() const { return order >= 0.0; }
  };
  /// What a rank reports to the others.
  struct Report {
    Finding in_slice;    ///< first non-finite element of its reduced slices
    Finding at_origin;   ///< the same in its own gradients, before reduction
    Finding in_weights;  ///< first parameter of its slices that isn't finite
    double loss_finite = 1.0;
  };
  using Reports = sharding::Agreement<Report>;

  Diagnosis(ShardedModel& model, Reports& reports) : model_(model), reports_(reports) {}

  /// Finds the first non-finite element of this rank's reduced slices.
  void look_at_slices();
  /// The first finding of all ranks, e.g. "tensor ... of unit ..., slice owner rank 1". A
  /// collective.
  std::string where();
  /// The first parameter that isn't finite, formatted as by where(); "" if all are finite. A
  /// collective, one pass over every rank's slices.
  std::string non_finite_weight();
  /// Checks every gradient before it is reduced, until `stop_watching`.
  void watch_gradients();
  void stop_watching(double own_loss_sum);
  /// Combines all ranks' findings; every rank gets the same sentence. It counts steps from 1 as
  /// metrics.jsonl does (`step` counts from 0). A collective.
  std::string explain(std::int64_t step, double loss, double norm);

 private:
  template <class SliceOf>
  Finding find_in_slices(const SliceOf& slice_of) const;
  std::int64_t find_non_finite(const Tensor& values) const;
  double order_of(int unit, sharding::UnitEnd end) const;
  Finding find_in_full(int unit, sharding::UnitEnd end, const Tensor& full) const;
  std::string name_of(const Finding& finding) const;

  ShardedModel& model_;
  Reports& reports_;
  Report own_;
};

}  // namespace sherd::engine
