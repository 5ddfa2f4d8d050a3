// Keys without effect. Each key of the field table is changed, alone and beside each other one, in recipes
// that use different parts of the program. Then something else than recipe.yaml must differ: the losses,
// the weights, the files, what is printed, the plan. Or the recipe is refused; or the key's row says that it
// isn't used here (engine/recipe/uses.h), and the run says so, too. What a row says is held to: a key that
// "isn't used" must change nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/recipe/uses.h"
#include "engine/recipe/values.h"
#include "tests/support/observed_run.h"

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
    {"checkpoint.resume", "never, in a new folder; tests/engine/main/resume_cli_test.cpp"},
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
                                               {"model.rope_original_length", "6"},
                                               {"model.window", "5"},
                                               {"model.window_layers", "\"10\""},
                                               {"optimizer.type", "muon"},
                                               {"mixed_precision.param_dtype", "bf16"},
                                               {"lr_scheduler.type", "wsd"}})},
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
                      {"adapter.type", "lora"},
                      {"adapter.rank", "2"},
                      {"checkpoint.init_from", quoted(base_checkpoint(folder_))}})},
        {"a pipeline of replicas", with(plain, {{"parallelism.pipeline_parallel_degree", "2"},
                                                {"parallelism.data_parallel_replicate_degree", "2"},
                                                {"training.gradient_accumulation_steps", "2"},
                                                {"model.dropout", "0.1"},
                                                {"optimizer.type", "lars"},
                                                {"zero_optimization.stage", "1"}})},
    };
  }

  void write_more_data() const {
    std::string lines;
    for (int i = 0; i < 30; ++i) {
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

/// Values of a key other than the one it has.
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
    ADD_FAILURE() << "no values to try for " << field.key;
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
      {"model.rope_original_length", {"5", "8"}},
      {"model.rope_low_freq_factor", {"0.5"}},
      {"model.rope_high_freq_factor", {"6"}},
      {"model.rope_beta_fast", {"8"}},
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
      {"parallelism.pipeline_layers_per_chunk", {"[1, 1]", "[2]"}},
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
      {"metrics.trace_steps", {"[1, 2]"}},
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

/// Compares runs of which one has one setting more.
class Comparison {
 public:
  explicit Comparison(const test::TempFolder& folder) : folder_(folder), values_(folder) {}

  /// Each value of `field` other than the one that it has, in a recipe that runs.
  void change(const Settings& recipe, const Field& field) {
    for (const std::string& value : values_.of(field, value_of(recipe, field))) {
      change_to(recipe, field, value);
    }
  }

  /// Two keys at once: each must do beside the other what it does alone.
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

 private:
  void change_to(const Settings& recipe, const Field& field, const std::string& value) {
    Settings changed = recipe;
    changed[std::string(field.key)] = value;
    const ObservedRun &before = run(recipe), &after = run(changed);
    if (!after.refusal.empty()) return;
    SCOPED_TRACE(fmt::format("{}: {} in\n{}", field.key, value, recipe_text(recipe)));
    const engine::Use* const use = engine::use_of(field.key);
    const bool used =
        !use || use->holds(resolved(recipe).values) || use->holds(resolved(changed).values);
    const bool said =
        after.notes.find(std::string(field.key) + " has no effect") != std::string::npos;
    if (used) {
      EXPECT_FALSE(said) << after.notes;
      EXPECT_TRUE(after.seen != before.seen || is_shown_elsewhere(field, value) ||
                  planned(changed) != planned(recipe))
          << "does nothing";
      return;
    }
    EXPECT_EQ(after.seen, before.seen)
        << "does something, though its row says: used " << use->when << "\n"
        << first_difference(before.seen, after.seen);
    EXPECT_TRUE(said || is_default(recipe, field, value)) << "does nothing, and nobody says so";
  }

  const test::TempFolder& folder_;
  Values values_;
  std::map<std::string, ObservedRun> runs_;
};

TEST_F(Keys, EachAloneIsSeenOrRefusedOrSaidToBeIdle) {
  write_more_data();
  for (const auto& [name, scene] : scenes()) {
    SCOPED_TRACE(name);
    Comparison comparison(folder_);
    ASSERT_EQ(comparison.run(scene).refusal, "");
    EXPECT_EQ(comparison.run(scene).notes, "");
    EXPECT_EQ(observe(folder_, scene).seen, comparison.run(scene).seen) << "of two equal runs";
    for (const Field& field : engine::recipe_fields()) comparison.change(scene, field);
    EXPECT_GT(comparison.num_runs(), 200u);
  }
}

/// Pairs of one block, or of all; of those, one in `every`.
void try_pairs(const test::TempFolder& folder, const Settings& scene, bool within_blocks,
               int every) {
  Comparison comparison(folder);
  Random random(36);
  const std::vector<Field>& fields = engine::recipe_fields();
  for (std::size_t b = 0; b < fields.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (within_blocks && fields[a].block() != fields[b].block()) continue;
      if (random.whole(1, every) == 1) comparison.change_both(scene, fields[a], fields[b]);
    }
  }
  fmt::print("{} runs\n", comparison.num_runs());
}

TEST_F(Keys, SomePairsOfABlockToo) {
  write_more_data();
  for (const auto& [name, scene] : scenes()) {
    SCOPED_TRACE(name);
    try_pairs(folder_, scene, true, 40);
  }
}

class KeysSlow : public Keys {};

TEST_F(KeysSlow, AllPairsOfABlockInEveryRecipeAndAllPairsInOne) {
  write_more_data();
  for (const auto& [name, scene] : scenes()) {
    SCOPED_TRACE(name);
    try_pairs(folder_, scene, true, 1);
  }
  try_pairs(folder_, scenes()[0].second, false, 1);
}

}  // namespace
}  // namespace sherd::testing
