// What GPUs can't do yet, and what only they can.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/gpu_limits.h"
#include "engine/recipe/device_rules.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

/// An unsupported key, and a sentence.
using Refusal = std::pair<std::string_view, std::string>;

void refuse_exchanges(const Recipe& recipe, std::vector<Refusal>& refusals) {
  const Recipe::Parallelism& degrees = recipe.parallelism;
  // NCCL can't add the contributions of some ranks alone.
  if (degrees.batch_groups > degrees.data_parallel_replicate_degree) {
    refusals.emplace_back(
        "parallelism.batch_groups",
        fmt::format(
            "parallelism.batch_groups is {}; on GPUs it can only be the number of replicas, {}.",
            degrees.batch_groups, degrees.data_parallel_replicate_degree));
  }
  if (degrees.sum_order == SumOrderChoice::kCanonical) {
    refusals.emplace_back(
        "parallelism.sum_order",
        "parallelism.sum_order is canonical, which only CPUs support; use sum_order: rank, or set "
        "run.device: cpu.");
  }
}

void refuse_adapters_of_experts(const Recipe& recipe, std::vector<Refusal>& refusals) {
  const auto& targets = recipe.adapter.targets;
  const auto found = std::ranges::find_if(
      targets, [](const std::string& target) { return target.starts_with("moe.experts."); });
  if (recipe.adapter.type == AdapterChoice::kLora && found != targets.end()) {
    refusals.emplace_back(
        "adapter.targets",
        fmt::format("adapter.targets has {}, but adapters of experts are computed "
                    "on CPUs only; set run.device: cpu.",
                    *found));
  }
}

void refuse_experts(const Recipe& recipe, std::vector<Refusal>& refusals) {
  if (recipe.moe.num_experts == 0) return;
  refuse_adapters_of_experts(recipe, refusals);
  const std::int64_t groups = recipe.moe.num_groups > 1 ? recipe.moe.num_groups : 0;
  if (recipe.moe.num_experts + 2 * groups > model::kMostGpuExperts) {
    refusals.emplace_back(
        "moe.num_experts",
        fmt::format("moe.num_experts is {}; GPUs route at most {} experts, each of several groups "
                    "counted as two more; set run.device: cpu.",
                    recipe.moe.num_experts, model::kMostGpuExperts));
  }
  if (recipe.moe.score == RouterScore::kSparsemixer) {
    refusals.emplace_back("moe.score",
                          "moe.score is sparsemixer, which is computed on CPUs only; set "
                          "run.device: cpu.");
  }
}

// What cuDNN's grouped products can't do, or what we don't do around them.
void refuse_grouped_products(const Recipe& recipe, std::vector<Refusal>& refusals) {
  const MoeKeys& moe = recipe.moe;
  if (!moe.grouped_gemm || moe.num_experts == 0) return;
  const auto refuse = [&](std::string reason) {
    refusals.emplace_back(
        "moe.grouped_gemm",
        fmt::format("moe.grouped_gemm is true, but {}; use grouped_gemm: false.", reason));
  };
  if (recipe.mixed_precision.param_dtype == FloatType::kF32) {
    return refuse("mixed_precision.param_dtype is f32, and grouped products are of bf16 and f16");
  }
  if (moe.bias) return refuse("grouped products don't add biases, and moe.bias is true");
  constexpr std::int64_t kPack = 8;  // 16 bytes
  const std::int64_t ranks = recipe.parallelism.tensor_parallel_degree;
  if (recipe.model.hidden_size % kPack != 0) {
    return refuse(fmt::format("model.hidden_size is {}, which isn't a multiple of {}",
                              recipe.model.hidden_size, kPack));
  }
  if (moe.ffn_hidden_size % (kPack * ranks) != 0) {
    refuse(fmt::format("moe.ffn_hidden_size is {}, which isn't a multiple of {}",
                       moe.ffn_hidden_size, kPack * ranks));
  }
}

void refuse_models(const Recipe& recipe, std::vector<Refusal>& refusals) {
  if (recipe.model.head_width > model::kWidestGpuHead) {
    refusals.emplace_back("model.head_width",
                          fmt::format("model.head_width is {}; GPUs compute heads up to {} wide; "
                                      "set run.device: cpu.",
                                      recipe.model.head_width, model::kWidestGpuHead));
  }
  if (recipe.model.head_bias) {
    refusals.emplace_back("model.head_bias",
                          "model.head_bias is true, which is computed on CPUs only; set "
                          "run.device: cpu.");
  }
}

// Each tensor rank has a router of its own: equal bits alone keep their choices equal.
void refuse_free_sums(const Recipe& recipe, std::vector<Refusal>& refusals) {
  if (recipe.run.deterministic || recipe.moe.num_experts == 0 ||
      recipe.parallelism.tensor_parallel_degree == 1) {
    return;
  }
  refusals.emplace_back("run.deterministic",
                        "run.deterministic is false, but tensor ranks of a model with experts must "
                        "choose the same ones; use deterministic: true.");
}

void refuse_updates(const Recipe& recipe, std::vector<Refusal>& refusals) {
  const Recipe::Parallelism& degrees = recipe.parallelism;
  const OptimizerType type = recipe.optimizer.type;
  if (type == OptimizerType::kAdafactor || type == OptimizerType::kDion) {
    refusals.emplace_back(
        "optimizer.type",
        fmt::format("optimizer.type is {}, which is computed on CPUs only; use {}, or set "
                    "run.device: cpu.",
                    type == OptimizerType::kDion ? "dion" : "adafactor",
                    type == OptimizerType::kDion ? "muon" : "adamw"));
  }
  if (degrees.parameter_servers > 0) {
    refusals.emplace_back("parallelism.parameter_servers",
                          fmt::format("parallelism.parameter_servers is {}, but parameter servers "
                                      "and their workers are CPU ranks only; use 0, or set "
                                      "run.device: cpu.",
                                      degrees.parameter_servers));
  }
  if (recipe.diloco.active()) {
    refusals.emplace_back("diloco.sync_every",
                          fmt::format("diloco.sync_every is {}, but replicas train apart on CPUs "
                                      "only; use 0, or set run.device: cpu.",
                                      recipe.diloco.sync_every));
  }
  for (const auto& [key, is_used] : {std::pair("powersgd.rank", recipe.powersgd.active()),
                                     std::pair("dgc.compress_ratio", recipe.dgc.active())}) {
    if (!is_used) continue;
    refusals.emplace_back(key, fmt::format("{} isn't 0, but compressed sums over replicas are for "
                                           "CPUs only; use 0, or set run.device: cpu.",
                                           key));
  }
}

std::vector<std::pair<std::string_view, OffloadDevice>> offload_devices(const Recipe& recipe) {
  return {{"zero_optimization.offload_optimizer", recipe.zero_optimization.offload_optimizer},
          {"zero_optimization.offload_param", recipe.zero_optimization.offload_param},
          {"activation_checkpointing.offload", recipe.activation_checkpointing.offload}};
}

void refuse_offload_and_graphs(const Recipe& recipe, std::vector<Refusal>& refusals) {
  for (const auto& [key, device] : offload_devices(recipe)) {
    if (device == OffloadDevice::kNvme) {
      refusals.emplace_back(
          key,
          fmt::format("{} is nvme, which only CPUs support; use cpu, the host's memory, or set "
                      "run.device: cpu.",
                      key));
    } else if (device == OffloadDevice::kCpu && recipe.run.cuda_graphs) {
      refusals.emplace_back(
          "run.cuda_graphs",
          fmt::format("run.cuda_graphs is true, but graphs can't contain copies to the host's "
                      "memory; use cuda_graphs: false, or {}: none.",
                      key));
    }
  }
  // A host waits for its router, which a graph can't.
  if (recipe.run.cuda_graphs && recipe.moe.num_experts > 0) {
    refusals.emplace_back(
        "run.cuda_graphs",
        "run.cuda_graphs is true, but graphs can't contain experts, whose numbers "
        "of rows the host waits for; use cuda_graphs: false.");
  }
  // Graphs can't contain exchanges between ranks inside layers.
  const Recipe::Parallelism& degrees = recipe.parallelism;
  if (recipe.run.cuda_graphs &&
      degrees.tensor_parallel_degree * degrees.context_parallel_degree > 1) {
    refusals.emplace_back(
        "run.cuda_graphs",
        "run.cuda_graphs is true, but graphs can't contain exchanges of tensor or context ranks; "
        "use cuda_graphs: false.");
  }
  // What a graph repeats is the same work at each step.
  if (!recipe.run.cuda_graphs) return;
  if (recipe.activation_checkpointing.mode == Recompute::kFull) {
    refusals.emplace_back(
        "run.cuda_graphs",
        "run.cuda_graphs is true, but graphs can't contain activation_checkpointing.mode: full, "
        "where a backward depends on the forward before it; use cuda_graphs: false.");
  }
  for (const auto& [key, dropout] : {std::pair("model.dropout", recipe.model.dropout),
                                     std::pair("adapter.dropout", recipe.adapter.dropout)}) {
    if (dropout == 0.0) continue;
    refusals.emplace_back(
        "run.cuda_graphs",
        fmt::format("run.cuda_graphs is true, but graphs can't contain {}, which draws anew at "
                    "each step; use cuda_graphs: false.",
                    key));
  }
}

// Whether it is trained or not.
std::vector<Refusal> models_that_gpus_refuse(const Recipe& recipe) {
  std::vector<Refusal> refusals;
  refuse_experts(recipe, refusals);
  refuse_models(recipe, refusals);
  return refusals;
}

std::vector<Refusal> refusals_of_gpus(const Recipe& recipe) {
  std::vector<Refusal> refusals = models_that_gpus_refuse(recipe);
  refuse_grouped_products(recipe, refusals);
  refuse_exchanges(recipe, refusals);
  refuse_free_sums(recipe, refusals);
  refuse_updates(recipe, refusals);
  refuse_offload_and_graphs(recipe, refusals);
  return refusals;
}

std::vector<Refusal> refusals_of_cpus(const Recipe& recipe) {
  std::vector<Refusal> refusals;
  for (const auto& [key, device] : offload_devices(recipe)) {
    if (device != OffloadDevice::kCpu) continue;
    refusals.emplace_back(key, fmt::format("{} is cpu, but on a CPU all state is in its memory "
                                           "already; use nvme for a disk, or none.",
                                           key));
  }
  if (recipe.zero_optimization.offload_update == OffloadDevice::kCpu) {
    refusals.emplace_back("zero_optimization.offload_update",
                          "zero_optimization.offload_update is cpu, but on a CPU its cores update "
                          "everything already; leave it out.");
  }
  return refusals;
}

std::vector<Refusal> refusals_of(DeviceKind device, const Recipe& recipe) {
  return device == DeviceKind::kCpu ? refusals_of_cpus(recipe) : refusals_of_gpus(recipe);
}

void require_none(std::vector<Refusal> refusals) {
  std::vector<std::string> lines;
  for (auto& [key, sentence] : refusals) lines.push_back(std::move(sentence));
  if (!lines.empty()) throw RecipeErrors(std::move(lines));
}

}  // namespace

void check_device(Resolution& recipe) {
  const DeviceChoice device = recipe.values().run.device;
  if (device == DeviceChoice::kAuto) return;
  const DeviceKind kind = device == DeviceChoice::kCpu ? DeviceKind::kCpu : DeviceKind::kCuda;
  for (const auto& [key, sentence] : refusals_of(kind, recipe.values())) {
    recipe.refuse({key, "run.device"}, "{}", sentence);
  }
}

void require_possible_on(DeviceKind device, const Recipe& recipe) {
  require_none(refusals_of(device, recipe));
}

void require_model_possible_on(DeviceKind device, const Recipe& recipe) {
  if (device != DeviceKind::kCpu) require_none(models_that_gpus_refuse(recipe));
}

}  // namespace sherd::engine
