/// What expert ranks exchange, in `sherd plan`: bytes and rounds for balanced and for uneven
/// choices. Memory is the same for all of them (engine/model/mlp/expert_rounds.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/from_recipe.h"
#include "sharding/mesh/traffic.h"

namespace sherd::engine {

struct ExpertPlan {
  /// Of each layer and pass of a micro-batch, if one rank is the fullest for every rank's rows.
  struct Rounds {
    double imbalance = 1.0;  ///< rows of the fullest owner / mean; 0: as many rows as there can be
    std::int64_t fewest = 0, most = 0;
  };
  int ranks = 1;            ///< that divide the experts
  std::int64_t layers = 0;  ///< with experts, on all pipeline ranks
  std::int64_t rows = 0;    ///< of a rank's micro-batch in a layer: tokens times choices
  std::int64_t buffer_rows = 0;
  std::vector<Rounds> rounds{};     ///< at imbalances 1, 2, 4, 8, and at worst
  std::int64_t balanced_bytes = 0;  ///< rows and weights that a rank sends in a step
  std::int64_t worst_bytes = 0;     ///< the most: all rows leave, and it gets all rows
};

/// None unless ranks divide the experts. `sent`: what a rank sends in a step.
std::optional<ExpertPlan> expert_plan(const TrainingOptions& options, const sharding::Mesh& mesh,
                                      const std::vector<sharding::Sent>& sent);

std::string expert_plan_text(const ExpertPlan& plan);

}  // namespace sherd::engine
