// Keys without effect. Each key of the field table is changed, alone and together with others, in recipes
// that use different parts of the program. Then something must differ: the losses, the weights, the
// files, what is printed, or the plan. Otherwise the recipe is refused, or the key's row says that it isn't
// used here (engine/recipe/uses.h), and the run says so too. The row must be right: a key that "isn't used"
// changes nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/recipe/uses.h"
#include "engine/recipe/values.h"
#include "tests/support/runs/observed_run.h"

namespace sherd::testing {
namespace {

using engine::Field;

/// What a run that succeeds in a test's folder can't show of a key, and where it is shown.
const std::map<std::string, const char*, std::less<>> kShownElsewhere = {
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
    {"distillation.teacher", "a file that is written first: tests/engine/distillation"},
    {"hooks.on_failure", "nothing fails; tests/engine/hooks"},
    {"hooks.timeout", "commands that take longer; tests/engine/hooks"},
    {"hooks.step_interval", "commands that leave something; tests/engine/hooks"},
    {"hooks.retries", "commands that fail; tests/engine/hooks"},
    {"bad_steps.max_in_a_row", "several bad steps: tests/engine/run"},
    {"bad_steps.max_rewinds", "several rewinds: tests/engine/run"},
    {"training.weight_hash_interval", "replicas that differ: tests/engine/train"},
    {"memory.device_memory", "more than is needed"},
    {"memory.on_exceed", "nothing is exceeded; tests/engine/run/memory_test.cpp"},
};

std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

class Keys : public ::testing::Test {
 protected:
  Keys() : folder_(test::memory_folder()) { write_recipe_data(folder_); }

  Settings common() const {
    return {{"run.device", "cpu"},
            {"run.num_threads", "1"},
            {"model.num_layers", "2"},
            {"model.hidden_size", "16"},
            {"model.num_attention_heads", "4"},
            {"model.vocab_size", "260"},
            {"data.path", quoted(folder_.file("texts"))},
            {"training.seq_length", "12"},
            {"training.global_batch_size", "4"},
            {"training.max_steps", "6"},
            {"training.eval_interval", "2"},
            {"training.eval_batches", "1"},
            {"training.sample_tokens", "6"},
            {"optimizer.lr", "0.03"},
            {"checkpoint.interval", "2"},
            {"metrics.log_interval", "2"}};
  }
  Settings with(Settings settings, const Settings& more) const {
    for (const auto& [key, value] : more) settings[key] = value;
    return settings;
  }
  /// Recipes in which different keys do something.
  std::vector<std::pair<std::string, Settings>> scenes() const {
    const Settings plain = common();
    return {
        {"plain", plain},
        {"ranks and scaled rope", with(plain, {{"parallelism.data_parallel_shard_degree", "2"},
                                               {"zero_optimization.stage", "3"},
                                               {"training.gradient_accumulation_steps", "2"},
                                               {"model.rope_scaling", "yarn"},
                                               {"model.rope_factor", "4"},
                                               {"model.rope_original_length", "100"},
                                               {"model.window", "5"},
                                               {"model.window_layers", "\"10\""},
                                               {"model.num_layers", "4"},
                                               {"model.head_width", "16"},
                                               {"optimizer.type", "muon"},
                                               {"mixed_precision.param_dtype", "bf16"},
                                               {"lr_scheduler.type", "wsd"},
                                               {"lr_scheduler.wsd_decay_steps", "3"}})},
        {"documents, tokens and f16",
         with(plain, {{"data.path", quoted(folder_.file("documents.jsonl"))},
                      {"data.format", "text"},
                      {"data.tokenizer", quoted(folder_.file("tokenizer"))},
                      {"data.documents", "separate"},
                      {"model.positions", "learned"},
                      {"model.norm", "layernorm"},
                      {"model.bias", "true"},
                      {"model.activation", "gelu"},
                      {"mixed_precision.param_dtype", "f16"},
                      {"optimizer.type", "sgd"},
                      {"lr_scheduler.type", "constant"}})},
        {"an adapter on conversations",
         with(plain, {{"data.path", quoted(folder_.file("chat.jsonl"))},
                      {"data.format", "chat"},
                      {"data.tokenizer", quoted(folder_.file("chat_tokenizer"))},
                      {"training.train_on", "all"},
                      {"data.validation_fraction", "0.4"},
                      {"adapter.type", "lora"},
                      {"adapter.rank", "2"},
                      {"checkpoint.init_from", quoted(base_checkpoint(folder_))}})},
        {"a pipeline of replicas", with(plain, {{"model.num_layers", "4"},
                                                {"parallelism.pipeline_parallel_degree", "2"},
                                                {"parallelism.data_parallel_replicate_degree", "2"},
                                                {"training.gradient_accumulation_steps", "2"},
                                                {"model.dropout", "0.1"},
                                                {"optimizer.type", "lars"},
                                                {"zero_optimization.stage", "1"}})},
        {"experts and averages", with(plain, {{"moe.num_experts", "4"},
                                              {"moe.shared_ffn_hidden_size", "8"},
                                              {"moe.correction_bias", "true"},
                                              {"moe.score", "sigmoid"},
                                              {"averages.type", "ema"},
                                              {"averages.decay", "0.5"},
                                              {"optimizer.type", "adamw"},
                                              {"bad_steps.max_loss", "1000"},
                                              {"lr_scheduler.type", "inverse_sqrt"},
                                              {"lr_scheduler.warmup_steps", "2"}})},
        {"preferences", with(plain, {{"data.path", quoted(folder_.file("pairs.jsonl"))},
                                     {"data.format", "chat"},
                                     {"data.tokenizer", quoted(folder_.file("chat_tokenizer"))},
                                     {"data.documents", "separate"},
                                     {"training.seq_length", "40"},
                                     {"data.validation_fraction", "0.4"},
                                     {"preference.loss", "simpo"},
                                     {"preference.beta", "2"}})},
        {"local updates", with(plain, {{"parallelism.data_parallel_replicate_degree", "2"},
                                       {"zero_optimization.stage", "1"},
                                       {"diloco.sync_every", "2"},
                                       {"diloco.num_fragments", "2"}})},
        {"parameter servers", with(plain, {{"parallelism.data_parallel_shard_degree", "2"},
                                           {"zero_optimization.stage", "2"},
                                           {"parallelism.parameter_servers", "1"}})},
        {"latents and commands", with(plain, {{"model.kv_lora_rank", "8"},
                                              {"model.qk_nope_head_dim", "4"},
                                              {"model.qk_rope_head_dim", "2"},
                                              {"model.v_head_dim", "4"},
                                              {"optimizer.type", "adafactor"},
                                              {"hooks.on_step", "'true'"},
                                              {"hooks.step_interval", "2"}})},
    };
  }

  void write_more_data() const {
    std::string lines;
    for (int i = 0; i < 120; ++i) {
      lines += fmt::format("{{\"text\": \"the fox {} {}\", \"body\": \"{}\"}}\n", i,
                           std::string(static_cast<std::size_t>(i * 7 % 20), 'x'), i * i);
    }
    folder_.write("documents.jsonl", lines);
    const Settings base =
        with(common(), {{"run.output_dir", quoted(folder_.file("base"))},
                        {"training.max_steps", "1"},
                        {"training.sample_tokens", "0"},
                        {"training.eval_interval", "0"},
                        {"data.format", "chat"},
                        {"data.path", quoted(folder_.file("chat.jsonl"))},
                        {"data.tokenizer", quoted(folder_.file("chat_tokenizer"))},
                        {"training.train_on", "all"}});
    observe(folder_, base);
  }

  test::TempFolder folder_;
};

engine::ResolvedRecipe resolved(const Settings& settings) {
  return engine::resolve_recipe(
      {.path = "keys.yaml", .text = recipe_text(settings), .sets = {}, .ranks = {}});
}

std::string value_of(const Settings& settings, const Field& field) {
  return engine::format_value(field, resolved(settings).values);
}

/// Values of a key other than its own.
class Values {
 public:
  explicit Values(const test::TempFolder& folder) : folder_(folder) {}

  std::vector<std::string> of(const Field& field, const std::string& now) const {
    std::vector<std::string> values = candidates(field);
    std::erase(values, now);
    return values;
  }

 private:
  std::vector<std::string> candidates(const Field& field) const {
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
      {"memory.server_memory", {"1TiB"}},
  };
};

bool is_shown_elsewhere(const Field& field, const std::string& value) {
  return kShownElsewhere.contains(field.key) ||
         kShownElsewhere.contains(fmt::format("{}: {}", field.key, value));
}

bool is_default(const Settings& recipe, const Field& field, const std::string& value) {
  Settings without = recipe, with = recipe;
  without.erase(std::string(field.key));
  with[std::string(field.key)] = value;
  return value_of(without, field) == value_of(with, field);
}

std::string first_difference(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const std::size_t from = i < 80 ? 0 : i - 80;
  return a.substr(from, 160) + "\n-- and\n" + b.substr(from, 160);
}

/// Keys that a refusal names.
std::set<const Field*> named_in(const std::string& refusal) {
  std::set<const Field*> named;
  for (const Field& field : engine::recipe_fields()) {
    if (refusal.find(field.key) != std::string::npos) named.insert(&field);
  }
  return named;
}

/// Compares runs of which one has one setting more.
class Comparison {
 public:
  explicit Comparison(const test::TempFolder& folder) : folder_(folder), values_(folder) {}

  /// The first value of `field` other than its own, or each, in a recipe that runs.
  void change(const Settings& recipe, const Field& field, bool all) {
    for (const std::string& value : values_.of(field, value_of(recipe, field))) {
      change_to(recipe, field, value);
      if (!all) break;
    }
  }

  /// Two keys at once: each must do something when the other is changed too.
  void change_both(const Settings& recipe, const Field& a, const Field& b) {
    for (const auto& [first, second] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      const std::vector<std::string> values = values_.of(*first, value_of(recipe, *first));
      if (values.empty()) continue;
      Settings with_first = recipe;
      with_first[std::string(first->key)] = values[0];
      if (!run(with_first).refusal.empty()) continue;
      const std::vector<std::string> others = values_.of(*second, value_of(with_first, *second));
      if (!others.empty()) change_to(with_first, *second, others[0]);
    }
  }

  /// Runs a recipe once.
  const ObservedRun& run(const Settings& settings) {
    const auto [found, is_new] = runs_.try_emplace(recipe_text(settings));
    if (is_new) found->second = observe(folder_, settings);
    return found->second;
  }
  std::size_t num_runs() const { return runs_.size(); }
  /// Pairs of keys that a refusal named.
  const std::set<std::pair<const Field*, const Field*>>& named_together() const {
    return named_together_;
  }

 private:
  void change_to(const Settings& recipe, const Field& field, const std::string& value) {
    Settings changed = recipe;
    changed[std::string(field.key)] = value;
    const ObservedRun &before = run(recipe), &after = run(changed);
    if (!after.refusal.empty()) {
      const std::set<const Field*> named = named_in(after.refusal);
      for (const Field* a : named) {
        for (const Field* b : named) {
          if (a < b) named_together_.emplace(a, b);
        }
      }
      return;
    }
    if (value_of(changed, field) == value_of(recipe, field)) return;
    SCOPED_TRACE(fmt::format("{}: {} in\n{}", field.key, value, recipe_text(recipe)));
    const engine::Use* const use = engine::use_of(field.key);
    const bool said =
        after.notes.find(std::string(field.key) + " has no effect") != std::string::npos;
    const bool used_now = !use || use->holds(resolved(changed).values);
    const bool said_by_row =
        use && after.notes.find(fmt::format("{} has no effect: it is used {}.", field.key,
                                            use->when)) != std::string::npos;
    EXPECT_FALSE(said_by_row && used_now) << after.notes;
    if (!said && (used_now || use->holds(resolved(recipe).values))) {
      EXPECT_TRUE(after.seen != before.seen || is_shown_elsewhere(field, value) ||
                  planned(changed) != planned(recipe))
          << "does nothing";
      return;
    }
    EXPECT_TRUE(after.seen == before.seen)
        << "does something, though its row says: used " << use->when << "\n"
        << first_difference(before.seen, after.seen);
    EXPECT_TRUE(said || is_default(recipe, field, value)) << "does nothing, and nobody says so";
  }

  const test::TempFolder& folder_;
  Values values_;
  std::map<std::string, ObservedRun> runs_;
  std::set<std::pair<const Field*, const Field*>> named_together_;
};

/// Each key in `of` scenes of all, in turn; each in its first value or in all.
void change_each(const test::TempFolder& folder,
                 const std::vector<std::pair<std::string, Settings>>& scenes, std::size_t of,
                 bool all_values) {
  for (std::size_t i = 0; i < scenes.size(); ++i) {
    SCOPED_TRACE(scenes[i].first);
    Comparison comparison(folder);
    const Settings& scene = scenes[i].second;
    ASSERT_EQ(comparison.run(scene).refusal, "");
    EXPECT_EQ(comparison.run(scene).notes, "");
    const std::string again = observe(folder, scene).seen;
    EXPECT_TRUE(again == comparison.run(scene).seen)
        << "two equal runs: " << first_difference(again, comparison.run(scene).seen);
    std::size_t number = 0;
    for (const Field& field : engine::recipe_fields()) {
      if ((number++ + i) % scenes.size() < of) comparison.change(scene, field, all_values);
    }
    fmt::print("{}: {} runs\n", scenes[i].first, comparison.num_runs());
  }
}

TEST_F(Keys, EachAloneIsSeenOrRefusedOrSaidToBeIdle) {
  write_more_data();
  change_each(folder_, scenes(), 2, false);
}

/// Pairs of one block, or of all; of those, one in `every`. Returns the pairs that refusals name.
std::set<std::pair<const Field*, const Field*>> try_pairs(const test::TempFolder& folder,
                                                          const Settings& scene, bool within_blocks,
                                                          int every) {
  Comparison comparison(folder);
  Random random(scene.size());  // other pairs in other scenes
  const std::vector<Field>& fields = engine::recipe_fields();
  for (std::size_t b = 0; b < fields.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (within_blocks && fields[a].block() != fields[b].block()) continue;
      if (random.whole(1, every) == 1) comparison.change_both(scene, fields[a], fields[b]);
    }
  }
  fmt::print("{} runs\n", comparison.num_runs());
  return comparison.named_together();
}

TEST_F(Keys, SomePairsOfABlockToo) {
  write_more_data();
  for (const auto& [name, scene] : scenes()) {
    SCOPED_TRACE(name);
    try_pairs(folder_, scene, true, 200);
  }
}

class KeysSlow : public Keys {};

TEST_F(KeysSlow, EachAloneInEveryRecipeWithEveryValue) {
  write_more_data();
  change_each(folder_, scenes(), scenes().size(), true);
}

// All pairs of a block in every recipe, and all that a refusal names together.
TEST_F(KeysSlow, AllPairsOfABlockAndAllThatARuleNamesTogether) {
  write_more_data();
  for (const auto& [name, scene] : scenes()) {
    SCOPED_TRACE(name);
    const auto together = try_pairs(folder_, scene, true, 1);
    Comparison comparison(folder_);
    for (const auto& [a, b] : together) comparison.change_both(scene, *a, *b);
    fmt::print("{}: {} pairs of rules, {} runs\n", name, together.size(), comparison.num_runs());
  }
}

TEST_F(KeysSlow, AllPairsInOneRecipe) {
  write_more_data();
  try_pairs(folder_, scenes()[0].second, false, 1);
}

}  // namespace
}  // namespace sherd::testing
