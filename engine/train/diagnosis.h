/// Why a step's loss or gradient isn't finite: which tensor of which unit, whose slice, and on
/// which rank it arose first. Used by a run that is about to stop, and in short by a step that is
/// skipped.
///
/// The reduced gradient tells tensor and owner. The origin it can't tell, since a sum over ranks is
/// everybody's; so the step is replayed with a look at every rank's own gradient before each
/// reduction. Data, dropout and parameters are the same again, so the same happens again.
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
    double order = -1.0;  ///< -1: nothing found; otherwise how many looks came before
    double unit = -1.0;
    double parameter = -1.0;
    double element = -1.0;

    bool found() const { return order >= 0.0; }
  };
  /// What a rank tells the others.
  struct Report {
    Finding in_slice;    ///< first non-finite element of its reduced slices
    Finding at_origin;   ///< of its own gradients, before they were reduced
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
  /// The first parameter that isn't finite, in the words of where(); "" if all are. A collective, one
  /// pass over every rank's slices.
  std::string non_finite_weight();
  /// Until `stop_watching`, looks at every gradient before it is reduced.
  void watch_gradients();
  void stop_watching(double own_loss_sum);
  /// Puts all ranks' findings together; every rank gets the same sentence, which counts steps from 1 as
  /// metrics.jsonl does (`step` counts from 0). A collective.
  std::string explain(std::int64_t step, double loss, double norm);

 private:
  template <class SliceOf>
  Finding find_in_slices(const SliceOf& slice_of) const;
  double order_of(int unit, sharding::UnitEnd end) const;
  Finding find_in_full(int unit, sharding::UnitEnd end, const Tensor& full) const;
  std::string name_of(const Finding& finding) const;

  ShardedModel& model_;
  Reports& reports_;
  Report own_;
};

}  // namespace sherd::engine
