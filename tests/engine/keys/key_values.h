/// Values to try for each key of the field table, and the keys of which a short run shows nothing.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/fields.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

/// What a run that succeeds in a test's folder can't show of a key, and where it is shown.
inline const std::map<std::string, const char*, std::less<>> kShownElsewhere = {
    {"data.field", "where a file is .jsonl: tests/engine/data/same_texts_test.cpp"},
    {"training.early_stopping_patience",
     "losses that rise: tests/engine/run/early_stopping_test.cpp"},
    {"parallelism.sum_order: free", "between machines: tests/engine/processes"},
    {"optimizer.no_decay: [\"*norm*\"]", "norms never decay"},
    {"checkpoint.staging_mib", "more than is saved; tests/checkpoint"},
    {"run.device", "auto is cpu where a test gives the processor"},
    {"run.peer_timeout", "tests/engine/processes: ranks that stand still"},
    {"run.output_dir", "where all that is seen here is"},
    {"model.max_seq_length",
     "with rope: a limit for those who use the model (tests/engine/inference)"},
    {"parallelism.hierarchical", "between processes: tests/engine/processes"},
    {"checkpoint.async", "times; tests/checkpoint"},
    {"checkpoint.max_failed_saves", "tests/engine/run/failed_saves_test.cpp"},
    {"checkpoint.stop_deadline", "tests/engine/main: signals"},
    {"checkpoint.on_interrupt", "tests/engine/main: signals"},
    {"checkpoint.keep_best", "losses that rise: tests/engine/run"},
    {"model.add_special_tokens", "texts with the token: tests/engine/huggingface"},
    {"data.rewritten_history", "templates that rewrite: tests/engine/data/chat"},
    {"loss_scaling.on_min_scale", "overflows: tests/optim"},
    {"loss_scaling.growth_factor", "a thousand steps without overflow: tests/optim"},
    {"loss_scaling.backoff_factor", "overflows: tests/optim"},
    {"loss_scaling.min_scale", "overflows: tests/optim"},
    {"moe.buffer_rows: 64", "more rows than one rank has"},
    {"bad_steps.max_loss: 0", "losses above the limit; tests/engine/run"},
    {"data.unfit: error", "rows that are unfit; tests/engine/data/chat"},
    {"gradient_clipping.max_norm: 0", "gradients above the limit"},
    {"lr_scheduler.type: wsd", "more steps of decay than one: tests/optim"},
    {"loss_scaling.hysteresis", "overflows: tests/optim"},
    {"bad_steps.skip_non_finite", "losses that aren't finite: tests/engine/run"},
    {"bad_steps.rewind_after", "bad steps: tests/engine/run"},
    {"checkpoint.max_minutes", "runs that take minutes; tests/engine/run"},
    {"checkpoint.resume", "never, in a new folder; tests/engine/main/resume_cli_test.cpp"},
    {"data.sources", "lists of blocks: tests/engine/data/sources_test.cpp"},
    {"data.stages", "lists of blocks: tests/engine/data/stages_test.cpp"},
    {"data.validation_sets", "lists of blocks: tests/engine/run"},
    {"training.tasks", "lists of blocks: tests/engine/run"},
    {"optimizer.groups", "lists of blocks: tests/optim"},
    {"training.best_by", "a name of a validation set: tests/engine/run"},
    {"zero_optimization.offload_path", "a folder; tests/engine/offload"},
    {"zero_optimization.offload_buffer_mib", "times; tests/engine/offload"},
    {"zero_optimization.offload_update", "GPUs; tests/equivalence/host_offload_test.cpp"},
    {"distillation.teacher", "a file that is written first: tests/engine/distillation"},
    {"hooks.on_failure", "nothing fails; tests/engine/hooks"},
    {"dgc.warmup_epochs: 1", "more steps than one epoch has: tests/optim"},
    {"hooks.timeout", "commands that take longer; tests/engine/hooks"},
    {"hooks.step_interval", "commands that leave something; tests/engine/hooks"},
    {"hooks.retries", "commands that fail; tests/engine/hooks"},
    {"bad_steps.max_in_a_row", "several bad steps: tests/engine/run"},
    {"bad_steps.max_rewinds", "several rewinds: tests/engine/run"},
    {"training.weight_hash_interval", "replicas that differ: tests/engine/train"},
    {"memory.device_memory", "more than is needed"},
    {"memory.on_exceed", "nothing is exceeded; tests/engine/run/memory_test.cpp"},
};

/// Pairs of which the second key changes nothing once the first has the value that is tried, and why.
struct IdlePair {
  std::string_view first, second, why;
};
inline constexpr IdlePair kIdlePairs[] = {
    {"run.device", "run.share_device", "auto is cpu in a test"},
    {"run.device", "run.deterministic", "auto is cpu in a test"},
    {"run.device", "run.cuda_graphs", "auto is cpu in a test"},
    {"run.device", "moe.grouped_gemm", "auto is cpu in a test"},
    {"model.norm_placement", "model.attention_softcap", "post: scores are too small to be capped"},
    {"model.head_width", "model.rope_original_length", "yarn scales all of few frequencies alike"},
    {"model.head_width", "model.rope_beta_fast", "yarn scales all of few frequencies alike"},
    {"model.head_width", "model.rope_truncate", "yarn scales all of few frequencies alike"},
    {"model.rope_fraction", "model.rope_beta_fast", "yarn scales all of few frequencies alike"},
    {"model.rope_original_length", "model.rope_beta_fast", "yarn scales all frequencies alike"},
    {"adapter.rank", "adapter.rslora", "1 is its own square root"},
    {"lr_scheduler.type", "lr_scheduler.wsd_decay_steps",
     "the first of one step has the whole rate"},
    {"lr_scheduler.min_lr_ratio", "lr_scheduler.wsd_decay_steps",
     "the first of one step has the whole rate"},
    {"lr_scheduler.wsd_decay_shape", "lr_scheduler.wsd_decay_steps",
     "the first of one step has the whole rate"},
    {"zero_optimization.prefetch_depth", "zero_optimization.reshard_after_forward",
     "there is room for all: times"},
    {"model.rope_fraction", "model.rope_theta", "the only frequency left is 1"},
    {"data.documents", "data.validation_fraction", "one of two documents is held out anyway"},
    {"data.documents", "data.packing", "one document trains"},
    {"training.seq_length", "training.eval_batches", "the pairs that fit are one batch"},
    {"training.seq_length", "training.final_eval", "the pairs that fit are one batch"},
    {"training.sample_top_k", "training.sample_temperature", "1: only the likeliest"},
    {"optimizer.no_decay", "optimizer.weight_decay", "nothing decays"},
    {"optimizer.no_decay", "optimizer.type", "adam differs from adamw in the decay"},
    {"bad_steps.max_loss", "bad_steps.max_grad_norm", "all steps are bad already"},
    {"bad_steps.max_loss", "bad_steps.sigma", "all steps are bad already"},
    {"bad_steps.max_grad_norm", "bad_steps.sigma", "all steps are bad already"},
    {"bad_steps.rewind_after", "bad_steps.rewind_steps", "no step is bad"},
    {"bad_steps.rewind_after", "bad_steps.skip_data_steps", "no step is bad"},
    {"checkpoint.keep_every", "checkpoint.keep_last", "all are kept"},
};
inline bool is_idle_pair(const engine::Field& first, const engine::Field& second) {
  for (const IdlePair& pair : kIdlePairs) {
    if (pair.first == first.key && pair.second == second.key) return true;
    if (pair.first == second.key && pair.second == first.key) return true;
  }
  return false;
}

inline bool is_shown_elsewhere(const engine::Field& field, const std::string& value) {
  return kShownElsewhere.contains(field.key) ||
         kShownElsewhere.contains(fmt::format("{}: {}", field.key, value));
}

inline std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

/// Values of a key other than its own.
class KeyValues {
 public:
  explicit KeyValues(const test::TempFolder& folder) : folder_(folder) {}

  std::vector<std::string> of(const engine::Field& field, const std::string& now) const {
    std::vector<std::string> values = candidates(field);
    std::erase(values, now);
    return values;
  }

 private:
  std::vector<std::string> candidates(const engine::Field& field) const {
    if (const auto found = chosen().find(field.key); found != chosen().end()) return found->second;
    if (std::holds_alternative<engine::ChoiceMember>(field.slot)) {
      return {field.choices.begin(), field.choices.end()};
    }
    if (std::holds_alternative<engine::Member<bool>>(field.slot)) return {"true", "false"};
    if (std::holds_alternative<engine::Member<std::int64_t>>(field.slot)) return {"1", "2", "3"};
    if (std::holds_alternative<engine::Member<std::uint64_t>>(field.slot)) return {"7"};
    if (std::holds_alternative<engine::Member<double>>(field.slot)) return {"0.5", "0.25"};
    if (!kShownElsewhere.contains(field.key)) ADD_FAILURE() << "no values to try for " << field.key;
    return {};
  }

  const std::map<std::string_view, std::vector<std::string>>& chosen() const { return chosen_; }

  const test::TempFolder& folder_;
  const std::map<std::string_view, std::vector<std::string>> chosen_ = {
      {"run.name", {"another"}},
      {"run.output_dir", {quoted(folder_.file("elsewhere"))}},
      {"run.device", {"auto"}},
      {"model.from", {quoted(folder_.file("no_model"))}},
      {"model.num_layers", {"1", "3"}},
      {"model.hidden_size", {"24"}},
      {"model.num_attention_heads", {"2"}},
      {"model.num_kv_heads", {"2", "1"}},
      {"model.ffn_hidden_size", {"40"}},
      {"model.vocab_size", {"261"}},
      {"model.add_special_tokens", {"[<|new|>]"}},
      {"model.max_seq_length", {"20"}},
      {"model.rope_theta", {"100"}},
      {"model.head_width", {"6"}},
      {"model.norm_offset", {"1"}},
      {"model.window", {"4", "0"}},
      {"model.window_layers", {"\"01\"", "\"1\"", "\"0\""}},
      {"model.rope_layers", {"\"01\"", "\"0\""}},
      {"model.rope_factor", {"2"}},
      {"model.rope_original_length", {"5", "20"}},
      {"model.rope_low_freq_factor", {"0.5"}},
      {"model.rope_high_freq_factor", {"6"}},
      {"model.rope_beta_fast", {"2"}},
      {"model.rope_beta_slow", {"0.1"}},
      {"model.rope_short_factors", {"[1.5, 2.5]"}},
      {"model.rope_long_factors", {"[1.5, 3.5]"}},
      {"model.window_rope_theta", {"50"}},
      {"adapter.targets", {"[mlp.down]", "[attention.query, attention.output]"}},
      {"adapter.modules_to_save", {"[head]", "[norm1]"}},
      {"data.path", {quoted(folder_.file("bytes.txt")), quoted(folder_.file("chat.jsonl"))}},
      {"data.tokenizer", {quoted(folder_.file("tokenizer")), "\"\""}},
      {"data.field", {"body"}},
      {"data.token_bytes", {"1", "2"}},
      {"data.validation_path", {quoted(folder_.file("bytes.validation.txt"))}},
      {"data.validation_fraction", {"0.3", "0"}},
      {"training.seq_length", {"8"}},
      {"training.global_batch_size", {"8"}},
      {"training.micro_batch_size", {"1", "2"}},
      {"training.max_steps", {"5", "7"}},
      {"training.eval_interval", {"0", "1", "4"}},
      {"training.eval_batches", {"0", "2"}},
      {"training.early_stopping_patience", {"1", "7"}},
      {"training.sample_tokens", {"0", "3"}},
      {"training.sample_prompt", {quoted("the")}},
      {"training.sample_temperature", {"0", "3"}},
      {"training.sample_top_k", {"1", "3"}},
      {"parallelism.data_parallel_shard_degree", {"1", "2"}},
      {"parallelism.data_parallel_replicate_degree", {"1", "2"}},
      {"parallelism.pipeline_parallel_degree", {"1", "2"}},
      {"parallelism.tensor_parallel_degree", {"2"}},
      {"parallelism.context_parallel_degree", {"2"}},
      {"parallelism.pipeline_layers_per_chunk", {"[1, 3]", "[3, 1]"}},
      {"zero_optimization.stage", {"0", "1", "2", "3"}},
      {"zero_optimization.prefetch_depth", {"0", "2"}},
      {"loss_scaling.initial_scale_power", {"4"}},
      {"loss_scaling.growth_factor", {"4"}},
      {"loss_scaling.growth_interval", {"1"}},
      {"loss_scaling.hysteresis", {"1"}},
      {"loss_scaling.min_scale", {"8"}},
      {"optimizer.betas", {"[0.5, 0.6]"}},
      {"optimizer.weight_decay", {"0.5", "0"}},
      {"optimizer.no_decay", {"[\"*\"]", "[embedding]", "[\"*norm*\"]"}},
      {"lr_scheduler.warmup_steps", {"2"}},
      {"lr_scheduler.decay_steps", {"3", "9"}},
      {"gradient_clipping.max_norm", {"0.01", "0"}},
      {"checkpoint.interval", {"0", "1", "4"}},
      {"checkpoint.staging_mib", {"4"}},
      {"checkpoint.keep_last", {"1"}},
      {"checkpoint.keep_every", {"2"}},
      {"checkpoint.keep_best", {"1"}},
      {"checkpoint.resume", {"never", quoted(folder_.file("no_checkpoint"))}},
      {"checkpoint.init_from", {quoted(folder_.file("no_weights"))}},
      {"memory.device_memory", {"1TiB", "1KiB"}},
      {"metrics.log_interval", {"1"}},
      {"checkpoint.max_minutes", {"1000"}},
      {"metrics.trace_steps", {"[1, 2]"}},
      {"model.init_std", {"0.1"}},
      {"model.norm_eps", {"0.01"}},
      {"model.kv_lora_rank", {"4"}},
      {"model.q_lora_rank", {"4"}},
      {"model.qk_nope_head_dim", {"2"}},
      {"model.qk_rope_head_dim", {"4"}},
      {"model.v_head_dim", {"2"}},
      {"model.query_growth", {"0.5"}},
      {"model.query_step", {"3"}},
      {"model.mup_base_hidden_size", {"8"}},
      {"moe.num_experts", {"2", "0"}},
      {"moe.experts_per_token", {"1", "3"}},
      {"moe.ffn_hidden_size", {"12"}},
      {"moe.shared_ffn_hidden_size", {"12", "0"}},
      {"moe.layers", {"\"01\""}},
      {"moe.num_groups", {"2"}},
      {"moe.kept_groups", {"2"}},
      {"moe.buffer_rows", {"64"}},
      {"zero_optimization.offload_optimizer", {"nvme"}},
      {"zero_optimization.offload_param", {"nvme"}},
      {"activation_checkpointing.offload", {"nvme"}},
      {"optimizer.beta2_decay", {"-0.5"}},
      {"optimizer.clip_threshold", {"0.01"}},
      {"optimizer.min_parameter_rms", {"0.5"}},
      {"optimizer.qk_clip_threshold", {"0.001"}},
      {"lr_scheduler.min_lr_ratio", {"0.9"}},
      {"lr_scheduler.wsd_decay_tokens", {"96"}},
      {"bad_steps.max_loss", {"0.01", "0"}},
      {"bad_steps.max_grad_norm", {"0.000001"}},
      {"bad_steps.sigma", {"0.0001"}},
      {"bad_steps.window", {"2"}},
      {"bad_steps.rewind_after", {"1"}},
      {"bad_steps.rewind_steps", {"1"}},
      {"bad_steps.skip_data_steps", {"1"}},
      {"averages.start_step", {"3"}},
      {"model.attention_scale", {"0.3"}},
      {"hooks.on_start", {"\"touch $SHERD_OUTPUT_DIR/said\""}},
      {"hooks.on_step", {"\"touch $SHERD_OUTPUT_DIR/step\""}},
      {"hooks.on_evaluation", {"\"touch $SHERD_OUTPUT_DIR/evaluated\""}},
      {"hooks.on_save", {"\"touch $SHERD_OUTPUT_DIR/saved\""}},
      {"hooks.on_end", {"\"touch $SHERD_OUTPUT_DIR/ended\""}},
      {"preference.beta", {"0.5"}},
      {"preference.label_smoothing", {"0.2"}},
      {"preference.simpo_gamma", {"0.1"}},
      {"diloco.sync_every", {"3", "0"}},
      {"diloco.num_fragments", {"1"}},
      {"diloco.fragment_sync_delay", {"1"}},
      {"optimizer.dion_average_interval", {"1"}},
      {"powersgd.rank", {"2", "0"}},
      {"powersgd.start_step", {"2"}},
      {"powersgd.min_compression_rate", {"50"}},
      {"powersgd.seed", {"5"}},
      {"dgc.compress_ratio", {"0.02"}},
      {"dgc.sample_ratio", {"1"}},
      {"dgc.compress_lower_bound", {"0.5"}},
      {"dgc.compress_upper_bound", {"2"}},
      {"dgc.max_adaptation_iters", {"0"}},
      {"dgc.warmup_epochs", {"1"}},
      {"dgc.warmup_coeff", {"0.6"}},
      {"dgc.clip_threshold", {"0.0001"}},
      {"memory.server_memory", {"1TiB"}},
  };
};

}  // namespace sherd::testing
