#include "tests/support/random/random_recipe.h"

#include <algorithm>

#include "checkpoint/format/manifest.h"
#include "tests/support/random/legal_recipe.h"

namespace sherd::testing {

Settings LegalRecipe::make(const std::string& output) {
  for (const engine::Field& field : engine::recipe_fields()) {
    if (random_.chance(0.5)) set(field.key, legal_value(field, random_));
  }
  std::erase_if(settings_, [](const auto& each) {
    return each.first.starts_with("diloco.") || each.first.starts_with("powersgd.") ||
           each.first.starts_with("dgc.") || each.first.starts_with("mtp.") ||
           each.first == "optimizer.dion_decoupled";
  });
  has_adapter_ = random_.chance(0.3);
  text();
  names(output);
  shape();
  batch();
  pipeline();
  numbers();
  precision();
  saves();
  parts_of_models();
  experts();
  eight_bits();
  attention_scores();
  latent_attention();
  growth();
  on_disk();
  preferences();
  distillation();
  in_blocks();
  if (has_adapter_) adapter();
  train_apart();
  servers();
  compress();
  predict();
  return std::move(settings_);
}

std::string LegalRecipe::value_of(const std::string& key, const std::string& fallback) const {
  const auto found = settings_.find(key);
  return found == settings_.end() ? fallback : found->second;
}

void LegalRecipe::maybe(std::string_view key, const std::string& value) {
  random_.chance(0.5) ? set(key, value) : leave(key);
}

Settings legal_recipe(const test::TempFolder& folder, const std::string& output, Random& random) {
  return LegalRecipe(folder, random).make(output);
}

std::string base_checkpoint(const test::TempFolder& folder) {
  return folder.file("base/checkpoints/" + checkpoint::step_directory_name(1));
}

std::optional<Settings> base_recipe(const Settings& settings, const test::TempFolder& folder) {
  if (!settings.contains("checkpoint.init_from")) return std::nullopt;
  Settings base = {{"run.output_dir", quoted(folder.file("base"))},
                   {"run.device", "cpu"},
                   {"training.global_batch_size", "1"},
                   {"training.max_steps", "1"},
                   {"checkpoint.interval", "1"}};
  for (const auto& [key, value] : settings) {
    const bool is_models = key.starts_with("model.") || key.starts_with("moe.") ||
                           key.starts_with("data.") || key.starts_with("preference.");
    if (is_models || key == "training.seq_length" || key == "training.train_on") base[key] = value;
  }
  return base;
}

Settings elsewhere(const Settings& settings, Random& random) {
  Settings changed = settings;
  const std::int64_t batch = whole(settings, "training.global_batch_size");
  std::vector<std::int64_t> worlds;
  for (std::int64_t ranks = 1; ranks <= 4; ++ranks) {
    if (batch % ranks == 0) worlds.push_back(ranks);
  }
  const std::int64_t ranks = random.one_of(worlds);
  const bool servers = settings.contains("parallelism.parameter_servers");
  const std::int64_t replicas = !servers && ranks % 2 == 0 && random.chance(0.5) ? 2 : 1;
  changed["parallelism.data_parallel_shard_degree"] = std::to_string(ranks / replicas);
  changed["parallelism.data_parallel_replicate_degree"] = std::to_string(replicas);
  changed.erase("parallelism.batch_groups");
  for (const char* key : {"parallel_degree", "schedule", "chunks_per_rank", "layers_per_chunk"}) {
    changed.erase(std::string("parallelism.pipeline_") + key);
  }
  // Canonical sums of ranks that share tokens are of one row.
  const auto is = [&](const char* key, const char* value) {
    const auto found = changed.find(key);
    return found != changed.end() && found->second == value;
  };
  const bool one_row =
      (is("parallelism.sum_order", "canonical") && is("parallelism.sequence_parallel", "true")) ||
      random.chance(0.5);
  changed["training.micro_batch_size"] = std::to_string(one_row ? std::int64_t{1} : batch / ranks);
  changed.erase("training.gradient_accumulation_steps");
  changed["zero_optimization.stage"] = std::to_string(random.whole(servers ? 1 : 0, 3));
  leave_what_the_stage_lacks(changed);
  choose_expert_ranks(changed, random);
  // Parts of experts may cut blocks.
  const bool in_blocks = std::ranges::any_of(changed, [](const auto& entry) {
    return entry.first.starts_with("mixed_precision.") &&
           entry.second.find("block64") != std::string::npos;
  });
  if (in_blocks || changed.contains("optimizer.eight_bit_states")) {
    changed["parallelism.expert_parallel_degree"] = "1";
  }
  return changed;
}

Settings at_another_stage(const Settings& settings, Random& random) {
  Settings changed = settings;
  const std::int64_t stage = whole(settings, "zero_optimization.stage");
  const std::int64_t other = (stage + random.whole(1, 3)) % 4;
  const bool servers = settings.contains("parallelism.parameter_servers");
  changed["zero_optimization.stage"] =
      std::to_string(servers && other == 0 ? stage % 3 + 1 : other);
  leave_what_the_stage_lacks(changed);
  return changed;
}

}  // namespace sherd::testing
