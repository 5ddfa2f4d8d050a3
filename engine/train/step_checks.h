/// What ranks compare with one another in a training step, in addition to its statistics: copies of
/// the weights, and where a value arose that isn't finite.
#pragma once

#include "engine/train/diagnosis.h"
#include "engine/train/weight_check.h"

namespace sherd::engine {

struct StepChecks {
  static BufferSpec buffer(int world_size) {
    return Diagnosis::Reports::buffer(kReports, world_size);
  }
  StepChecks(const TrainingOptions& options, ShardedModel& model)
      : reports(model.rank(), kReports), weights(options, model) {}

  Diagnosis::Reports reports;
  WeightCheck weights;

 private:
  static constexpr const char* kReports = "diagnosis";
};

}  // namespace sherd::engine
