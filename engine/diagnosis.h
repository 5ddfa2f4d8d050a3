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

#include "engine/sharded_model.h"
#include "sharding/exchange.h"

namespace sherd::engine {

class Diagnosis {
 public:
  static constexpr int kNumbers = 9;  ///< of each rank, exchanged through `exchange`

  Diagnosis(ShardedModel& model, sharding::Exchange& exchange)
      : model_(model), exchange_(exchange) {}

  /// Finds the first non-finite element of this rank's reduced slices.
  void look_at_slices();
  /// The first finding of all ranks, e.g. "tensor ... of unit ..., slice owner rank 1". A
  /// collective.
  std::string where();
  /// Until `stop_watching`, looks at every gradient before it is reduced.
  void watch_gradients();
  void stop_watching(double own_loss_sum);
  /// Puts all ranks' findings together; every rank gets the same sentence. A collective.
  std::string explain(std::int64_t step, double loss, double norm);

 private:
  struct Finding {
    double order = -1.0;  ///< -1: nothing found; otherwise how many looks came before
    double unit = -1.0;
    double parameter = -1.0;
    double element = -1.0;
  };
  Finding find_in_full(int unit, const Tensor& full) const;
  std::string name_of(const Finding& finding) const;

  std::vector<std::vector<double>> all_findings();

  ShardedModel& model_;
  sharding::Exchange& exchange_;
  Finding in_slice_;
  Finding at_origin_;
  double looks_ = 0.0;
  bool loss_finite_ = true;
};

}  // namespace sherd::engine
