#include "engine/train/sharding_plan.h"

#include <utility>

#include "engine/model/parameters.h"

namespace sherd::engine {

sharding::ShardingPlan sharding_plan(const TrainingOptions& options, const sharding::Mesh& mesh) {
  sharding::ShardingPlan plan{mesh, {}};
  for (UnitSpec& spec : model::parameter_table(options.model)) {
    std::vector<ParameterSpec> frozen;
    std::erase_if(spec.parameters, [&](ParameterSpec& parameter) {
      if (model::is_trained(options.model, parameter.name)) return false;
      frozen.push_back(parameter);
      return true;
    });
    plan.units.emplace_back(std::move(spec), options.placement, options.precision, mesh,
                            std::move(frozen));
  }
  return plan;
}

}  // namespace sherd::engine
