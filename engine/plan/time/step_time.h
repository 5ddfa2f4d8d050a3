/// The time of a step, from counts of each kind of kernel and exchange: no launch is walked, so a
/// search can ask for a hundred thousand layouts. Where both speak, it agrees with the ledger
/// (engine/plan/ledger), which walks them.
///
///   step = pipeline(order, chunks of (forward, backward)) + exposed gathers and reductions
///          + update + state on disk
///
/// With parameter servers, reductions are pushes, and the first gathers of a step are pulls.
///
/// Exchanges of tensor, context and expert ranks are part of a layer's time. Gathers and reductions
/// of gradients overlap computation; what doesn't fit under it is exposed. An exchange that
/// overlaps slows the computation down (rates.h).
///
/// Source   orders of pipelines: generate.h, closed forms in pipeline_time.h.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/plan/time/rates.h"
#include "engine/plan/time/step_shape.h"

namespace sherd::engine {

/// Seconds of a step on the slowest rank, by cause. The parts add up to `total()`.
struct StepTime {
  double matmuls = 0.0, attention = 0.0, memory = 0.0;  ///< forward and backward
  double recompute = 0.0;
  double tensor = 0.0, context = 0.0, expert = 0.0;      ///< exchanges inside layers
  double bubble = 0.0, messages = 0.0;                   ///< of pipelines
  double gathers = 0.0, reductions = 0.0, slowed = 0.0;  ///< exposed; and what overlap costs
  double accumulation = 0.0, update = 0.0, disk = 0.0, host = 0.0;
  double apart = 0.0;  ///< exposed exchanges of replicas that train apart

  double total() const;
  /// Names and seconds, the longest first, without zeros.
  std::vector<std::pair<std::string, double>> parts() const;
};

/// Forward, backward and recompute of one layer and micro-batch on a rank.
struct LayerTime {
  double matmuls_forward = 0.0, matmuls_input = 0.0, matmuls_weight = 0.0;
  double attention_forward = 0.0, attention_backward = 0.0;
  double memory_forward = 0.0, memory_backward = 0.0;
  double tensor = 0.0, context = 0.0, expert = 0.0;  ///< forward; as much backward
  double tensor_again = 0.0;                         ///< further exchanges of the backward
  double again = 0.0;                                ///< recompute, with its exchanges
  double launches = 0.0;                             ///< forward and backward

  double forward() const;
  double backward() const;  ///< with recompute
};

/// Remembers layers, since most layouts share them. So all steps are of one model, form, type,
/// sequence length and imbalance; layouts differ. Not for several threads.
class StepTimes {
 public:
  StepTimes(const StepRates& rates, std::int64_t ranks_per_machine)
      : rates_(rates), per_machine_(ranks_per_machine) {}

  StepTime of(const StepShape& step);
  LayerTime layer(const StepShape& step, bool mixture);  ///< of any layer; experts if `mixture`
  LayerTime head(const StepShape& step);

  /// A collective of `ranks` that are `stride` apart.
  double exchange(std::string_view collective, double bytes, std::int64_t ranks,
                  std::int64_t stride) const;

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int>;
  const LayerTime& known(const StepShape& step, int which);
  void add_exchanges(const StepShape& step, LayerTime& time, bool mixture) const;
  struct UnitExchanges {
    double gather = 0.0, reduce = 0.0;
    double replicas = 0.0;  ///< sums over replicas, in the last micro-step alone
  };
  UnitExchanges unit_exchanges(const StepShape& step) const;
  LayerTime average_layer(const StepShape& step);
  void add_waiting(const StepShape& step, const LayerTime& layer, const LayerTime& end,
                   double slowest, StepTime& time) const;
  void add_data_exchanges(const StepShape& step, const LayerTime& layer, StepTime& time) const;
  void add_server_exchanges(const StepShape& step, const LayerTime& layer, const LayerTime& end,
                            StepTime& time) const;
  void add_update(const StepShape& step, double forward, StepTime& time) const;
  void add_outer_exchanges(const StepShape& step, StepTime& time) const;

  const StepRates& rates_;
  std::int64_t per_machine_;
  std::map<Key, LayerTime> layers_;
};

}  // namespace sherd::engine
