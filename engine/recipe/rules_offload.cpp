// Rules about state that is on disk between uses.
#include "engine/recipe/fields.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kParam = "zero_optimization.offload_param";

void check_device_of(Resolution& recipe, std::string_view key, OffloadDevice device) {
  if (device != OffloadDevice::kCpu) return;
  recipe.refuse(
      {key},
      "{} is cpu, but on a CPU all state is in its memory already, and GPUs don't use the "
      "host's memory for it yet. Use nvme for a disk, or none.",
      key);
}

// Only these updates need nothing but a slice.
void check_optimizer(Resolution& recipe, bool master) {
  const Recipe::Optimizer& optimizer = recipe.values().optimizer;
  const std::string_view key =
      recipe.values().zero_optimization.offload_optimizer != OffloadDevice::kNone ? kOptimizer
                                                                                  : kParam;
  if (optimizer.type == OptimizerType::kLamb || optimizer.type == OptimizerType::kLars ||
      optimizer.type == OptimizerType::kMuon) {
    recipe.refuse({key, "optimizer.type"},
                  "{} is nvme, but {} needs whole tensors, which aren't brought from disk yet. Use "
                  "adamw, adam, lion or sgd.",
                  key,
                  recipe_fields()[static_cast<std::size_t>(field_index("optimizer.type"))]
                      .choices[static_cast<std::size_t>(optimizer.type)]);
  }
  if (optimizer.type == OptimizerType::kSgd && optimizer.momentum == 0.0 && key == kOptimizer &&
      !master) {
    recipe.refuse({kOptimizer, "optimizer.momentum"},
                  "{} is nvme, but sgd without momentum has no state. Leave it out.", kOptimizer);
  }
}

}  // namespace

namespace {

void check_activations(Resolution& recipe) {
  constexpr std::string_view kKey = "activation_checkpointing.offload";
  const Recipe& values = recipe.values();
  check_device_of(recipe, kKey, values.activation_checkpointing.offload);
  if (values.activation_checkpointing.offload != OffloadDevice::kNvme) return;
  if (values.activation_checkpointing.mode != Recompute::kFull) {
    recipe.refuse(
        {kKey, "activation_checkpointing.mode"},
        "{} is nvme, but only the blocks' inputs can wait on a disk. Use mode: full, which "
        "keeps nothing else.",
        kKey);
  }
  if (values.parallelism.pipeline_parallel_degree > 1) {
    recipe.refuse({kKey, "parallelism.pipeline_parallel_degree"},
                  "{} is nvme, but pipeline ranks keep several micro-batches in slots of memory. "
                  "Leave out one of the two.",
                  kKey);
  }
}

}  // namespace

void check_offload(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& zero = values.zero_optimization;
  check_activations(recipe);
  check_device_of(recipe, kOptimizer, zero.offload_optimizer);
  check_device_of(recipe, kParam, zero.offload_param);
  const bool param = zero.offload_param == OffloadDevice::kNvme;
  const bool optimizer = zero.offload_optimizer == OffloadDevice::kNvme;
  if (!param && !optimizer) return;
  if (param && zero.stage < 3) {
    recipe.refuse(
        {kParam, "zero_optimization.stage"},
        "{} is nvme, but at stage {} every rank computes with whole parameters in memory. "
        "Use stage: 3.",
        kParam, zero.stage);
  }
  const bool master = optimizer && values.mixed_precision.param_dtype != FloatType::kF32 &&
                      (zero.stage < 3 || zero.shard_optimizer_over_replicas);
  check_optimizer(recipe, master);
  if (!param && !master) return;
  const std::string_view key = param ? kParam : kOptimizer;
  if (values.averages.type != AverageType::kNone) {
    recipe.refuse({key, "averages.type"},
                  "{} is nvme, which puts FP32 weights on disk, but averages.type needs them in "
                  "memory. Leave out one of the two.",
                  key);
  }
  if (values.optimizer.qk_clip_threshold > 0.0) {
    recipe.refuse({key, "optimizer.qk_clip_threshold"},
                  "{} is nvme, which puts FP32 weights on disk, but optimizer.qk_clip_threshold "
                  "changes them in memory. Leave out one of the two.",
                  key);
  }
  if (values.training.weight_hash_interval > 0) {
    recipe.refuse(
        {key, "training.weight_hash_interval"},
        "{} is nvme, which puts FP32 weights on disk, but "
        "training.weight_hash_interval compares them in memory. Leave out one of the two.",
        key);
  }
}

}  // namespace sherd::engine
