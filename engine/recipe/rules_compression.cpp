#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/recipe/choices.h"
#include "engine/recipe/compression_rules.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kLowRank = "powersgd.rank", kRatio = "dgc.compress_ratio",
                           kDecoupled = "optimizer.dion_decoupled",
                           kMaxNorm = "gradient_clipping.max_norm";

// Keys that can't be used with a compressed sum, and whether they are.
std::vector<std::pair<std::string_view, bool>> others_of(const Recipe& values) {
  const Recipe::Parallelism& degrees = values.parallelism;
  const Recipe::ZeroOptimization& zero = values.zero_optimization;
  const BadStepsKeys& bad = values.bad_steps;
  return {
      {"diloco.sync_every", values.diloco.active()},
      {"mixed_precision.reduce_dtype", in_blocks(values.mixed_precision.reduce_dtype)},
      {"mixed_precision.replica_reduce_dtype",
       values.mixed_precision.replica_reduce_dtype != ReplicaReduceType::kGradAccumDType &&
           !in_blocks(values.mixed_precision.reduce_dtype)},
      {"parallelism.batch_groups", degrees.batch_groups != degrees.data_parallel_replicate_degree},
      {"parallelism.sum_order", degrees.sum_order == SumOrderChoice::kCanonical},
      {"moe.num_experts", values.moe.num_experts > 0},
      {"zero_optimization.shard_optimizer_over_replicas", zero.shard_optimizer_over_replicas},
      {"zero_optimization.offload_optimizer", zero.offload_optimizer != OffloadDevice::kNone},
      {"zero_optimization.offload_param", zero.offload_param != OffloadDevice::kNone},
      // What a step that isn't applied has sent would be lost.
      {"loss_scaling.mode", values.loss_scaling.mode != LossScaling::Mode::kNone},
      {"bad_steps.max_loss", bad.max_loss > 0.0},
      {"bad_steps.max_grad_norm", bad.max_grad_norm > 0.0},
      {"bad_steps.sigma", bad.sigma > 0.0},
      {"bad_steps.skip_non_finite", bad.skip_non_finite}};
}

void check_one(Resolution& recipe, std::string_view key, const std::string& value) {
  const Recipe& values = recipe.values();
  for (const auto& [other, is_used] : others_of(values)) {
    if (!is_used) continue;
    recipe.refuse({key, other},
                  "{} is {}, so sums of gradients over replicas are compressed, and {} isn't "
                  "supported with that. Leave out one of the two.",
                  key, value, other);
  }
  if (values.mixed_precision.grad_accum_dtype != FloatType::kF32) {
    recipe.refuse(
        {key, "mixed_precision.grad_accum_dtype"},
        "{} is {}, and compressed sums are for gradients that are accumulated in f32. Set "
        "mixed_precision.grad_accum_dtype: f32.",
        key, value);
  }
  if (values.model.tie_embeddings && values.parallelism.pipeline_parallel_degree > 1) {
    recipe.refuse({key, "model.tie_embeddings", "parallelism.pipeline_parallel_degree"},
                  "{} is {}, and a tied matrix at both ends of a pipeline isn't supported with "
                  "that. Use pipeline_parallel_degree: 1, or untie it.",
                  key, value);
  }
}

// The sum of gradients is never formed.
void check_decoupled_dion(Resolution& recipe) {
  const Recipe& values = recipe.values();
  check_one(recipe, kDecoupled, "true");
  if (values.gradient_clipping.max_norm > 0.0) {
    recipe.refuse(
        {kDecoupled, kMaxNorm},
        "{} is true, so replicas never form the sum of their gradients, whose norm {}: {} "
        "would clip. Set {}: 0.",
        kDecoupled, kMaxNorm, values.gradient_clipping.max_norm, kMaxNorm);
  }
  for (const auto& [key, is_used] :
       {std::pair(kLowRank, values.powersgd.active()), std::pair(kRatio, values.dgc.active())}) {
    if (!is_used) continue;
    recipe.refuse({kDecoupled, key},
                  "{} and {} both change how replicas add gradients. Leave out one of the two.",
                  kDecoupled, key);
  }
}

}  // namespace

void check_compression(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.optimizer.decouples_replicas()) check_decoupled_dion(recipe);
  if (values.powersgd.active()) {
    check_one(recipe, kLowRank, fmt::format("{}", values.powersgd.rank));
  }
  if (!values.dgc.active()) return;
  check_one(recipe, kRatio, fmt::format("{}", values.dgc.compress_ratio));
  if (values.powersgd.active()) {
    recipe.refuse({kLowRank, kRatio}, "{} and {} compress the same sums. Leave out one of the two.",
                  kLowRank, kRatio);
  }
  if (values.optimizer.type != OptimizerType::kSgd) {
    recipe.refuse({kRatio, "optimizer.type"},
                  "{} is {}, and deep gradient compression is for SGD: others adapt to gradients "
                  "that aren't sent. Use optimizer.type: sgd, or powersgd instead.",
                  kRatio, values.dgc.compress_ratio);
  }
  if (values.dgc.clip == optim::LocalClip::kNorm && values.parallelism.tensor_parallel_degree > 1) {
    recipe.refuse(
        {"dgc.clip", "parallelism.tensor_parallel_degree"},
        "dgc.clip is norm, and parallelism.tensor_parallel_degree is {}, whose ranks have "
        "parts of the parameters that it is the norm of. Use clip: value or none.",
        values.parallelism.tensor_parallel_degree);
  }
  if (values.dgc.warmup_epochs > 0 && !values.data.stages.empty()) {
    recipe.refuse(
        {"dgc.warmup_epochs", "data.stages"},
        "dgc.warmup_epochs is {}, but data.stages have no epochs in common. Leave out one "
        "of the two.",
        values.dgc.warmup_epochs);
  }
}

}  // namespace sherd::engine
