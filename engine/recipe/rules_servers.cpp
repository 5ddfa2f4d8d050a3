// Rules of parameter servers.
#include <string_view>
#include <utility>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kServers = "parallelism.parameter_servers";
constexpr std::string_view kDelay = "parallelism.publish_delay";
constexpr std::string_view kStage = "zero_optimization.stage";

// Ranks that divide more than the batch, and state that has another home or is exchanged otherwise.
void check_others(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const Recipe::Parallelism& degrees = values.parallelism;
  const Recipe::ZeroOptimization& zero = values.zero_optimization;
  const std::pair<std::string_view, bool> others[] = {
      {"parallelism.data_parallel_replicate_degree", degrees.data_parallel_replicate_degree > 1},
      {"parallelism.pipeline_parallel_degree", degrees.pipeline_parallel_degree > 1},
      {"parallelism.tensor_parallel_degree", degrees.tensor_parallel_degree > 1},
      {"parallelism.context_parallel_degree", degrees.context_parallel_degree > 1},
      {"parallelism.expert_parallel_degree", degrees.expert_parallel_degree > 1},
      {"parallelism.batch_groups", degrees.batch_groups > 1},
      {"parallelism.sum_order", degrees.sum_order != SumOrderChoice::kRank},
      {"zero_optimization.offload_optimizer", zero.offload_optimizer != OffloadDevice::kNone},
      {"zero_optimization.offload_param", zero.offload_param != OffloadDevice::kNone},
      {"activation_checkpointing.offload",
       values.activation_checkpointing.offload != OffloadDevice::kNone},
      {"zero_optimization.shard_optimizer_over_replicas", zero.shard_optimizer_over_replicas},
      {"mixed_precision.gather_dtype",
       values.mixed_precision.gather_dtype != GatherType::kParamDType},
      {"mixed_precision.reduce_dtype", in_blocks(values.mixed_precision.reduce_dtype)},
      {"moe.num_experts", values.moe.num_experts > 0},
      {"adapter.type", values.adapter.type != AdapterChoice::kNone},
      {"preference.loss", values.preference.active()},
      {"distillation.teacher", values.distillation.active()},
      {"diloco.sync_every", values.diloco.active()},
      {"powersgd.rank", values.powersgd.active()},
      {"dgc.compress_ratio", values.dgc.active()},
      {"optimizer.dion_decoupled", values.optimizer.decouples_replicas()}};
  for (const auto& [key, is_used] : others) {
    if (!is_used) continue;
    recipe.refuse({kServers, key},
                  "{} is {}, and {} isn't supported with parameter servers. Leave out one of the "
                  "two.",
                  kServers, degrees.parameter_servers, key);
  }
}

}  // namespace

void check_servers(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.parallelism.parameter_servers == 0) {
    if (values.parallelism.publish_delay == 0) return;
    return recipe.refuse({kDelay, kServers},
                         "{} is {}, but only parameter servers publish late. Set {}, or use {}: 0.",
                         kDelay, values.parallelism.publish_delay, kServers, kDelay);
  }
  if (values.parallelism.publish_delay > 0 &&
      values.mixed_precision.param_dtype == FloatType::kF16) {
    recipe.refuse({kDelay, "mixed_precision.param_dtype"},
                  "{} is {}, but parameters of f16 that are published late can't be saved. Use "
                  "bf16 or f32, or {}: 0.",
                  kDelay, values.parallelism.publish_delay, kDelay);
  }
  if (values.zero_optimization.stage == 0) {
    recipe.refuse({kStage, kServers},
                  "{} is {}, but at {} 0 every rank holds all state. Use stage 1, 2 or 3.",
                  kServers, values.parallelism.parameter_servers, kStage);
  }
  check_others(recipe);
}

}  // namespace sherd::engine
