#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/recipe/choices.h"
#include "engine/recipe/groups.h"
#include "engine/recipe/mtp_rules.h"
#include "engine/recipe/mup.h"

namespace sherd::engine {

void check_mtp(Resolution& recipe) {
  constexpr std::string_view kLayers = "mtp.num_layers";
  const Recipe& values = recipe.values();
  if (!values.mtp.active()) return;
  const Recipe::Parallelism& degrees = values.parallelism;
  const std::pair<std::string_view, bool> others[] = {
      {"parallelism.pipeline_parallel_degree", degrees.pipeline_parallel_degree > 1},
      {"parallelism.tensor_parallel_degree", degrees.tensor_parallel_degree > 1},
      {"parallelism.sum_order", degrees.sum_order == SumOrderChoice::kCanonical},
      {"parallelism.parameter_servers", degrees.parameter_servers > 0},
      {"model.positions", values.model.positions == PositionChoice::kLearned},
      {"model.dropout", values.model.dropout > 0.0},
      {"training.z_loss_multiplier", values.training.z_loss_multiplier > 0.0},
      {"activation_checkpointing.offload",
       values.activation_checkpointing.offload != OffloadDevice::kNone},
      {"adapter.type", values.adapter.type != AdapterChoice::kNone},
      {"optimizer.groups", any_frozen(values.optimizer.groups)},
      {"preference.loss", values.preference.active()},
      {"distillation.teacher", values.distillation.active()},
      {"diloco.sync_every", values.diloco.active()},
      {"model.mup_base_hidden_size", mup_width_factor(values) != 1.0}};
  for (const auto& [key, is_used] : others) {
    if (!is_used) continue;
    recipe.refuse({kLayers, key},
                  "{} is {}, and {} isn't supported with multi-token prediction. Leave out one of "
                  "the two.",
                  kLayers, values.mtp.num_layers, key);
  }
  std::int64_t length = values.training.seq_length;
  for (const DataStage& stage : values.data.stages) {
    if (stage.seq_length > 0) length = std::min(length, stage.seq_length);
  }
  if (length <= values.mtp.num_layers + 1) {
    recipe.refuse({kLayers, "training.seq_length"},
                  "{} is {}, and rows of {} tokens have no token so far ahead. Use at most {}.",
                  kLayers, values.mtp.num_layers, length, std::max<std::int64_t>(length - 2, 0));
  }
}

}  // namespace sherd::engine
