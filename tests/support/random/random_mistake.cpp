// What can be wrong with a recipe.

#include "tests/support/random/random_recipe.h"

namespace sherd::testing {
namespace {

/// Settings that break a legal recipe.
Settings broken_rule(const Settings& legal, Random& random) {
  const std::int64_t width = whole(legal, "model.hidden_size");
  const std::vector<Settings> rules = {
      {{"model.num_kv_heads", std::to_string(width + 1)}},
      {{"model.window_layers", "\"1x\""}},
      {{"model.rope_layers", "\"\""}},
      {{"model.block", "parallel"}, {"model.norm_placement", "post"}},
      {{"model.norm", "rmsnorm"}, {"model.norm_bias", "true"}},
      {{"model.positions", "rope"}, {"model.head_width", "3"}},
      {{"model.positions", "rope"},
       {"model.rope_scaling", "yarn"},
       {"model.rope_original_length", "0"}},
      {{"moe.num_experts", "4"}, {"moe.experts_per_token", "5"}},
      {{"moe.num_experts", "4"}, {"moe.num_groups", "3"}},
      {{"moe.num_experts", "4"}, {"moe.layers", "\"0\""}},
      {{"moe.num_experts", "4"}, {"moe.shared_gate", "true"}, {"moe.shared_ffn_hidden_size", "0"}},
      {{"model.max_seq_length", "2"}, {"training.seq_length", "3"}},
      {{"training.global_batch_size",
        std::to_string(whole(legal, "training.global_batch_size") *
                           whole(legal, "parallelism.data_parallel_shard_degree") * 9 +
                       1)},
       {"training.gradient_accumulation_steps", "8"}},
      {{"lr_scheduler.warmup_steps", "1000"}},
      {{"loss_scaling.mode", "none"}, {"mixed_precision.param_dtype", "f16"}},
      {{"mixed_precision.param_dtype", "f32"}, {"mixed_precision.reduce_dtype", "bf16"}},
      {{"mixed_precision.optimizer_state_dtype", "f16"}},
      {{"mixed_precision.optimizer_state_dtype", "f32"},
       {"mixed_precision.stochastic_rounding", "true"}},
      {{"data.validation_fraction", "0.5"}, {"data.validation_path", "some.txt"}},
      {{"data.token_bytes", "3"}},
      {{"model.add_special_tokens", "[a1, b1, a1]"}},
      {{"model.add_special_tokens", "[a1]"}, {"data.format", "bytes"}, {"data.tokenizer", "\"\""}},
      {{"data.format", "text"}, {"data.tokenizer", "\"\""}},
      {{"data.format", "chat"}, {"data.documents", "joined"}},
      {{"metrics.trace_steps", "[1, 99]"}},
      {{"checkpoint.keep_best", "1"}, {"training.eval_interval", "0"}},
      {{"checkpoint.keep_best", "1"},
       {"checkpoint.interval", "1"},
       {"training.eval_interval", "1"},
       {"data.validation_path", "\"\""},
       {"data.validation_fraction", "0"}},
      {{"optimizer.no_decay", "[embedding]"}},
      {{"optimizer.no_decay", "[\"*\", \"embed_tokens*\"]"}},
      {{"training.early_stopping_patience", "1"}, {"training.eval_interval", "0"}},
      {{"checkpoint.staging_mib", "3"}},
      {{"loss_scaling.min_scale", "1e9"}, {"loss_scaling.mode", "dynamic"}},
      {{"adapter.type", "none"}, {"adapter.base_dtype", "nf4"}},
      {{"adapter.type", "lora"}, {"checkpoint.init_from", "\"\""}},
      {{"adapter.type", "lora"}, {"adapter.targets", "[]"}},
      {{"adapter.type", "lora"}, {"adapter.targets", "[embedding.token]"}},
      {{"adapter.type", "lora"}, {"adapter.targets", "[attention.qkv, attention.key]"}},
      {{"adapter.type", "lora"},
       {"adapter.targets", "[mlp.down]"},
       {"adapter.modules_to_save", "[mlp.down]"}},
      {{"adapter.type", "lora"}, {"adapter.modules_to_save", "[attention.query]"}},
      {{"adapter.type", "lora"}, {"adapter.modules_to_save", "[embedding.position]"}},
      {{"adapter.type", "lora"}, {"adapter.targets", "[mlp.down]"}, {"adapter.rank", "65536"}},
      {{"adapter.type", "lora"},
       {"moe.num_experts", "4"},
       {"adapter.targets", "[moe.experts.down]"},
       {"adapter.dropout", "0.1"}},
      {{"adapter.type", "lora"}, {"parallelism.sum_order", "canonical"}},
      {{"adapter.type", "lora"},
       {"adapter.base_dtype", "nf4"},
       {"parallelism.tensor_parallel_degree", "2"},
       {"model.ffn_hidden_size", "90"}},
      {{"run.output_dir", "\"\""}},
      {{"memory.device_memory", "12 apples"}},
  };
  return random.one_of(rules);
}

}  // namespace

Mistake with_mistake(const Settings& legal, Random& random) {
  Mistake mistake{.key = {}, .settings = legal};
  const auto& fields = engine::recipe_fields();
  switch (random.whole(0, 3)) {
    case 0:
      for (const auto& [key, value] : broken_rule(legal, random)) mistake.settings[key] = value;
      break;
    case 1: {
      const auto& field = random.one_of(fields);
      mistake.key = std::string(field.key) + random.one_of({"x", "_", "2", "é"});
      mistake.settings[mistake.key] = legal_value(field, random);
      break;
    }
    default: {
      const auto& field = random.one_of(fields);
      mistake.key = field.key;
      mistake.settings[mistake.key] = illegal_value(field, random);
    }
  }
  return mistake;
}

}  // namespace sherd::testing
