// Rules about mixtures of experts.
#include <algorithm>
#include <limits>

#include "engine/model/cut/tensor_cut.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

bool any_layer_has_experts(const Recipe& recipe) {
  const std::string& layers = recipe.moe.layers;
  for (std::int64_t i = 0; i < recipe.model.num_layers; ++i) {
    if (layers[static_cast<std::size_t>(i) % layers.size()] == '1') return true;
  }
  return false;
}

void check_numbers(Resolution& recipe) {
  const MoeKeys& moe = recipe.values().moe;
  if (moe.experts_per_token > moe.num_experts) {
    recipe.refuse({"moe.experts_per_token", "moe.num_experts"},
                  "moe.experts_per_token is {}, more than the {} experts there are.",
                  moe.experts_per_token, moe.num_experts);
  }
  if (moe.ffn_hidden_size == 0) {
    recipe.refuse(
        {"moe.ffn_hidden_size", "moe.num_experts"},
        "moe.ffn_hidden_size is 0, but there are {} experts. Leave it out, or give a width.",
        moe.num_experts);
  }
  if (moe.num_experts % moe.num_groups != 0) {
    return recipe.refuse({"moe.num_groups", "moe.num_experts"},
                         "moe.num_groups is {}, which doesn't divide num_experts {}.",
                         moe.num_groups, moe.num_experts);
  }
  if (moe.kept_groups > moe.num_groups) {
    return recipe.refuse({"moe.kept_groups", "moe.num_groups"},
                         "moe.kept_groups is {}, more than the {} groups there are.",
                         moe.kept_groups, moe.num_groups);
  }
  const std::int64_t choice = moe.num_experts / moe.num_groups * moe.kept_groups;
  if (moe.experts_per_token <= moe.num_experts && moe.experts_per_token > choice) {
    recipe.refuse(
        {"moe.experts_per_token", "moe.kept_groups", "moe.num_groups"},
        "moe.experts_per_token is {}, but kept_groups {} of num_groups {} leave {} experts "
        "to choose from.",
        moe.experts_per_token, moe.kept_groups, moe.num_groups, choice);
  }
  if (moe.shared_gate && moe.shared_ffn_hidden_size == 0) {
    recipe.refuse({"moe.shared_gate", "moe.shared_ffn_hidden_size"},
                  "moe.shared_gate is true, but there is no shared expert. Set "
                  "moe.shared_ffn_hidden_size, or leave the gate out.");
  }
}

// sparsemixer has two choices and weights of its own.
void check_sparsemixer(Resolution& recipe) {
  const MoeKeys& moe = recipe.values().moe;
  if (moe.score != RouterScore::kSparsemixer) return;
  const auto refuse = [&](bool is, std::string_view key, auto value, std::string_view needed) {
    if (!is) return;
    recipe.refuse({key, "moe.score"}, "{} is {}; with moe.score: sparsemixer it must be {}.", key,
                  value, needed);
  };
  refuse(moe.experts_per_token != 2, "moe.experts_per_token", moe.experts_per_token, "2");
  refuse(moe.num_groups != 1, "moe.num_groups", moe.num_groups, "1");
  refuse(moe.weight_scale != 1.0, "moe.weight_scale", moe.weight_scale, "1");
  refuse(moe.correction_bias, "moe.correction_bias", true, "false");
}

// What experts aren't combined with yet.
void check_company(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.parallelism.sum_order == SumOrderChoice::kCanonical) {
    recipe.refuse({"parallelism.sum_order", "moe.num_experts"},
                  "parallelism.sum_order is canonical, which a model with experts can't have: an "
                  "expert's rows don't lie in fixed groups of tokens. Use sum_order: rank.");
  }
  if (values.moe.bias && values.moe.correction_bias) {
    recipe.refuse(
        {"moe.bias", "moe.correction_bias"},
        "moe.bias and moe.correction_bias are true, but a router has one bias: one that is "
        "added to its logits, or one that only the choice sees.");
  }
  if (values.moe.bias && values.moe.weigh_input) {
    recipe.refuse(
        {"moe.bias", "moe.weigh_input"},
        "moe.bias and moe.weigh_input are true, which aren't supported together. Use one.");
  }
  check_sparsemixer(recipe);
  // Checkpoints and kernels keep an expert's tokens of a step in 32 bits.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (values.moe.balance_scope == BalanceScope::kPreviousStep &&
      values.training.global_batch_size > kMost / values.training.seq_length) {
    recipe.refuse({"moe.balance_scope", "training.global_batch_size"},
                  "moe.balance_scope is previous_step, which counts at most {} tokens in a step; "
                  "this one has {} sequences of {}. Use micro_batch.",
                  kMost, values.training.global_batch_size, values.training.seq_length);
  }
  if (values.model.mlp_bias) {
    recipe.refuse({"model.mlp_bias", "model.bias", "moe.num_experts"},
                  "model.mlp_bias is true, but experts' biases are moe.bias. Set mlp_bias: false.");
  }
}

// Ranks of a replica divide the experts.
void check_expert_ranks(Resolution& recipe) {
  constexpr std::string_view kDegree = "parallelism.expert_parallel_degree";
  constexpr std::string_view kShards = "parallelism.data_parallel_shard_degree";
  const Recipe& values = recipe.values();
  const std::int64_t degree = values.parallelism.expert_parallel_degree;
  if (degree == 1) return;
  const std::int64_t experts = values.moe.num_experts;
  const std::int64_t shards = values.parallelism.data_parallel_shard_degree;
  if (experts == 0) {
    return recipe.refuse({kDegree, "moe.num_experts"},
                         "{} is {}, but the model has no experts. Leave it out.", kDegree, degree);
  }
  std::int64_t nearest = std::min({degree, experts, shards});
  while (nearest > 1 && (experts % nearest != 0 || shards % nearest != 0)) --nearest;
  if (experts % degree != 0) {
    recipe.refuse({kDegree, "moe.num_experts"},
                  "{} is {}, which doesn't divide moe.num_experts {}. {}: {} would work.", kDegree,
                  degree, experts, kDegree, nearest);
  } else if (shards % degree != 0) {
    recipe.refuse({kDegree, kShards},
                  "{} is {}, which doesn't divide the {} ranks of {}. {}: {} would work.", kDegree,
                  degree, shards, kShards, kDegree, nearest);
  }
  const std::int64_t of_rank = experts / degree * values.moe.ffn_hidden_size;
  if (values.adapter.base_dtype == BaseDType::kNf4 &&
      of_rank * values.model.hidden_size % model::kQuantisedBlock != 0) {
    recipe.refuse(
        {kDegree, "adapter.base_dtype"},
        "{} is {}, and adapter.base_dtype nf4 has blocks of {} numbers, which ranks can't "
        "split: a rank's matrices of experts have {} x {}. Use {}: 1, or "
        "adapter.base_dtype: param_dtype.",
        kDegree, degree, model::kQuantisedBlock, of_rank, values.model.hidden_size, kDegree);
  }
  if (values.zero_optimization.grad_sync == GradSync::kBoundary &&
      values.training.gradient_accumulation_steps > 1) {
    recipe.refuse({kDegree, "zero_optimization.grad_sync"},
                  "{} is {}: an expert's gradients are added in every micro-step, in the order of "
                  "micro-batches, and grad_sync is boundary. Use grad_sync: every_micro_step, or "
                  "leave it out.",
                  kDegree, degree);
  }
}

}  // namespace

void check_experts(Resolution& recipe) {
  check_expert_ranks(recipe);
  const std::string& layers = recipe.values().moe.layers;
  if (recipe.values().moe.num_experts == 0) return;
  if (layers.empty() || layers.find_first_not_of("01") != std::string::npos) {
    recipe.refuse({"moe.layers"},
                  "moe.layers is \"{}\"; expected 1 or 0 for each layer, such as \"01\".", layers);
  } else if (!any_layer_has_experts(recipe.values())) {
    recipe.refuse({"moe.layers", "moe.num_experts"},
                  "moe.layers is \"{}\", so none of the {} layers has experts. Set num_experts: 0, "
                  "or a 1.",
                  layers, recipe.values().model.num_layers);
  }
  check_numbers(recipe);
  check_company(recipe);
}

}  // namespace sherd::engine
