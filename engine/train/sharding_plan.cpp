#include "engine/train/sharding_plan.h"

#include <utility>

#include "engine/model/parameters.h"

namespace sherd::engine {

sharding::ShardingPlan sharding_plan(const TrainingOptions& options, const sharding::Mesh& mesh) {
  sharding::ShardingPlan plan{mesh, {}};
  for (UnitSpec& spec : model::parameter_table(options.model)) {
    plan.units.emplace_back(std::move(spec), options.placement, options.precision, mesh);
  }
  return plan;
}

}  // namespace sherd::engine
