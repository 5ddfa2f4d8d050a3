// Rules about state that is on disk, or for GPUs on the host, between uses.
#include <string>
#include <utility>

#include "engine/recipe/fields.h"
#include "engine/recipe/offload.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kParam = "zero_optimization.offload_param";
constexpr std::string_view kUpdate = "zero_optimization.offload_update";

std::string_view name_of(OffloadDevice device) {
  return device == OffloadDevice::kCpu ? "cpu" : "nvme";
}

const OffloadDevice& device_of(const Recipe& recipe, std::string_view key) {
  const auto& zero = recipe.zero_optimization;
  return key == kOptimizer ? zero.offload_optimizer : zero.offload_param;
}

// Only these updates need nothing but a slice.
void check_optimizer(Resolution& recipe, bool master) {
  const OptimizerKeys& optimizer = recipe.values().optimizer;
  const std::string_view key =
      recipe.values().zero_optimization.offload_optimizer != OffloadDevice::kNone ? kOptimizer
                                                                                  : kParam;
  if (optimizer.type == OptimizerType::kLamb || optimizer.type == OptimizerType::kLars ||
      optimizer.type == OptimizerType::kMuon || optimizer.type == OptimizerType::kAdafactor ||
      optimizer.type == OptimizerType::kDion) {
    recipe.refuse({key, "optimizer.type"},
                  "{} is {}, but {} needs whole tensors, which aren't brought back yet. Use adamw, "
                  "adam, lion or sgd.",
                  key, name_of(device_of(recipe.values(), key)),
                  recipe_fields()[static_cast<std::size_t>(field_index("optimizer.type"))]
                      .choices[static_cast<std::size_t>(optimizer.type)]);
  }
  if (optimizer.type == OptimizerType::kSgd && optimizer.momentum == 0.0 && key == kOptimizer &&
      !master) {
    recipe.refuse({kOptimizer, "optimizer.momentum"},
                  "{} is {}, but sgd without momentum has no state. Leave it out.", kOptimizer,
                  name_of(device_of(recipe.values(), kOptimizer)));
  }
}

}  // namespace

sharding::OffloadOptions offload_of(const Recipe& recipe) {
  const Recipe::ZeroOptimization& zero = recipe.zero_optimization;
  const bool optimizer = zero.offload_optimizer != OffloadDevice::kNone;
  return {.moments = optimizer,
          .master = optimizer && recipe.mixed_precision.param_dtype != FloatType::kF32 &&
                    (zero.stage < 3 || zero.shard_optimizer_over_replicas),
          .parameters = zero.offload_param != OffloadDevice::kNone,
          .on_host = zero.offload_optimizer == OffloadDevice::kCpu ||
                     zero.offload_param == OffloadDevice::kCpu,
          .host_updates = zero.offload_update == OffloadDevice::kCpu,
          .buffer_bytes = zero.offload_buffer_mib << 20};
}

namespace {

void check_activations(Resolution& recipe) {
  constexpr std::string_view kKey = "activation_checkpointing.offload";
  const Recipe& values = recipe.values();
  const OffloadDevice device = values.activation_checkpointing.offload;
  if (device == OffloadDevice::kNone) return;
  if (values.activation_checkpointing.mode != Recompute::kFull) {
    recipe.refuse(
        {kKey, "activation_checkpointing.mode"},
        "{} is {}, but only the blocks' inputs can wait there. Use mode: full, which keeps nothing "
        "else.",
        kKey, name_of(device));
  }
  if (values.parallelism.pipeline_parallel_degree > 1) {
    recipe.refuse({kKey, "parallelism.pipeline_parallel_degree"},
                  "{} is {}, but pipeline ranks keep several micro-batches in slots of memory. "
                  "Leave out one of the two.",
                  kKey, name_of(device));
  }
}

// The host's cores update what they can read. Whose FP32 weights are where: disk_block_of
// (engine/train/layout/sharding_plan.cpp).
void check_update(Resolution& recipe, const sharding::OffloadOptions& offload) {
  if (!offload.host_updates) return;
  const Recipe& values = recipe.values();
  const auto& zero = values.zero_optimization;
  const bool divides =
      zero.shard_optimizer_over_replicas && values.parallelism.data_parallel_replicate_degree > 1;
  const bool is_gathered = zero.stage == 3 && !divides;
  const bool has_moments =
      values.optimizer.type != OptimizerType::kSgd || values.optimizer.momentum > 0.0;
  std::string missing;
  const auto need = [&](bool has, std::string_view what) {
    if (!has) missing += fmt::format("{}{}", missing.empty() ? "" : " and ", what);
  };
  if (has_moments || !is_gathered) {
    need(zero.offload_optimizer == OffloadDevice::kCpu, "offload_optimizer: cpu");
  }
  if (is_gathered) {
    need(offload.parameters, "offload_param: cpu");
  } else {
    need(values.mixed_precision.param_dtype != FloatType::kF32,
         "a 16-bit mixed_precision.param_dtype");
  }
  if (missing.empty()) return;
  recipe.refuse({kUpdate},
                "{} is cpu, but not all that an update needs is in the host's memory: that also "
                "takes {}.",
                kUpdate, missing);
}

}  // namespace

void check_offload(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& zero = values.zero_optimization;
  check_activations(recipe);
  const sharding::OffloadOptions offload = offload_of(values);
  check_update(recipe, offload);
  if (!offload.active()) return;
  if (offload.parameters && zero.stage < 3) {
    recipe.refuse(
        {kParam, "zero_optimization.stage"},
        "{} is {}, but at stage {} every rank computes with whole parameters in memory. Use "
        "stage: 3.",
        kParam, name_of(zero.offload_param), zero.stage);
  }
  check_optimizer(recipe, offload.master);
  if (!offload.parameters && !offload.master) return;
  const std::string_view key = offload.parameters ? kParam : kOptimizer;
  for (const auto& [other, is_used] :
       {std::pair<std::string_view, bool>("averages.type",
                                          values.averages.type != AverageType::kNone),
        {"optimizer.qk_clip_threshold", values.optimizer.qk_clip_threshold > 0.0},
        {"training.weight_hash_interval", values.training.weight_hash_interval > 0}}) {
    if (!is_used) continue;
    recipe.refuse({key, other},
                  "{} is {}, which moves FP32 weights away, but {} needs them in memory. Leave out "
                  "one of the two.",
                  key, name_of(device_of(values, key)), other);
  }
}

}  // namespace sherd::engine
