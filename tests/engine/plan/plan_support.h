/// Recipes for tests of plans, and reports of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "engine/plan/report.h"

namespace sherd::engine {

/// A GPT-2 shape of 5 million parameters with a batch that can be cut up in many ways, on 4 ranks
/// at stage 0.
inline constexpr const char* kSmallRecipe = R"(run: {name: small}
model: {num_layers: 6, hidden_size: 256, num_attention_heads: 4, vocab_size: 1024}
data: {path: nowhere}
training: {seq_length: 256, global_batch_size: 64, micro_batch_size: 16, max_steps: 10}
parallelism: {data_parallel_shard_degree: 4}
checkpoint: {interval: 0}
)";

/// A trillion parameters on 16,384 ranks.
inline constexpr const char* kTrillionRecipe = R"(run: {name: trillion}
model:
  num_layers: 128
  hidden_size: 25600
  num_attention_heads: 160
  num_kv_heads: 16
  ffn_hidden_size: 82944
  vocab_size: 50304
data: {path: nowhere}
training: {seq_length: 2048, global_batch_size: 65536, micro_batch_size: 2, max_steps: 1000}
parallelism: {data_parallel_shard_degree: 16384}
zero_optimization: {stage: 3}
mixed_precision: {param_dtype: bf16}
)";

using Strings = std::vector<std::string>;

inline ResolvedRecipe resolved(const std::string& text, const Strings& sets = {},
                               std::optional<std::int64_t> ranks = {}) {
  return resolve_recipe({.path = "recipe.yaml", .text = text, .sets = sets, .ranks = ranks});
}
inline ResolvedRecipe resolved_file(const std::string& path, const Strings& sets = {}) {
  return resolve_recipe({.path = path, .text = {}, .sets = sets, .ranks = {}});
}

/// A device of its own for every rank, or one memory for all.
inline DeviceLimit per_rank(std::int64_t bytes) {
  return {bytes, false, "--device-memory"};
}
inline DeviceLimit together(std::int64_t bytes) {
  return {bytes, true, "this machine"};
}

/// The arguments of a command line, applied to a recipe: what a person does who takes advice.
inline ResolvedRecipe applied(const std::string& text, const Strings& sets, const Change& change) {
  Strings all = sets;
  std::optional<std::int64_t> ranks;
  for (std::size_t i = 0; i + 1 < change.arguments.size(); i += 2) {
    if (change.arguments[i] == "--ranks") {
      ranks = std::stoll(change.arguments[i + 1]);
    } else {
      EXPECT_EQ(change.arguments[i], "--set");
      all.push_back(change.arguments[i + 1]);
    }
  }
  return resolved(text, all, ranks);
}

inline std::int64_t need(const ResolvedRecipe& recipe, const DeviceLimit& limit) {
  return needed_bytes(plan_world(recipe.values), limit);
}

template <class Function>
std::string usage_error_of(const Function& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace sherd::engine
