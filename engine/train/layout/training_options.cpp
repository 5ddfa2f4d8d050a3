#include "engine/train/layout/training_options.h"

#include <algorithm>

#include "engine/model/sites.h"

namespace sherd::engine {

void TrainingOptions::divide_experts() {
  const auto holds_experts = [](const model::LayerPart& part) {
    return std::ranges::find(part.sites, model::SiteId::kExpertsUp) != part.sites.end();
  };
  const auto at = std::ranges::find_if(model.layer_parts, holds_experts);
  SHERD_CHECK(at != model.layer_parts.end(), "experts that aren't a unit of their own");
  const int part = static_cast<int>(at - model.layer_parts.begin()) + 1;
  PartSharding how{placement, precision};
  const std::string axis(sharding::kExpertAxis);
  for (sharding::AxisSet* axes : {&how.placement.group, &how.placement.parameters,
                                  &how.placement.gradients, &how.placement.optimizer}) {
    axes->erase(axis);
  }
  how.placement.boxes = {axis};
  // A rank forms the gradients of several ranks' micro-batches, one after another.
  how.placement.grad_sync = sharding::GradSync::kEveryMicroStep;
  parts[part] = how;
}

}  // namespace sherd::engine
