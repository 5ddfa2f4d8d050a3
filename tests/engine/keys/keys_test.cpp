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
#include "tests/engine/keys/key_values.h"
#include "tests/support/runs/observed_run.h"

namespace sherd::testing {
namespace {

using engine::Field;

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
  using Scenes = std::vector<std::pair<std::string, Settings>>;
  /// Recipes in which different keys do something.
  Scenes scenes() const {
    Scenes all = first_scenes();
    for (auto& scene : more_scenes()) all.push_back(std::move(scene));
    return all;
  }
  Scenes first_scenes() const {
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
                                              {"moe.balance_loss", "0.01"},
                                              {"moe.score", "sigmoid"},
                                              {"model.rope_layers", "\"10\""},
                                              {"model.query_growth", "0.3"},
                                              {"model.query_step", "2"},
                                              {"averages.type", "ema"},
                                              {"averages.decay", "0.5"},
                                              {"optimizer.type", "adamw"},
                                              {"bad_steps.max_loss", "1000"},
                                              {"lr_scheduler.type", "inverse_sqrt"},
                                              {"lr_scheduler.warmup_steps", "2"}})},
    };
  }
  Scenes more_scenes() const {
    const Settings plain = common();
    return {
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
        {"predictions of replicas",
         with(plain, {{"parallelism.data_parallel_replicate_degree", "2"},
                      {"zero_optimization.stage", "1"},
                      {"mtp.num_layers", "1"}})},
        {"low-rank sums", with(plain, {{"parallelism.data_parallel_replicate_degree", "2"},
                                       {"zero_optimization.stage", "1"},
                                       {"training.gradient_accumulation_steps", "2"},
                                       {"powersgd.rank", "1"},
                                       {"powersgd.start_step", "0"},
                                       {"powersgd.min_compression_rate", "1"}})},
        {"sparse sums", with(plain, {{"parallelism.data_parallel_replicate_degree", "2"},
                                     {"zero_optimization.stage", "1"},
                                     {"optimizer.type", "sgd"},
                                     {"training.gradient_accumulation_steps", "2"},
                                     {"dgc.compress_ratio", "0.05"},
                                     {"dgc.sample_ratio", "0.1"},
                                     {"dgc.compress_lower_bound", "0.99"},
                                     {"dgc.compress_upper_bound", "1.01"},
                                     {"dgc.warmup_epochs", "2"},
                                     {"dgc.warmup_coeff", "0.3"},
                                     {"dgc.clip", "value"},
                                     {"dgc.clip_threshold", "0.001"}})},
        {"factors of replicas", with(plain, {{"parallelism.data_parallel_replicate_degree", "2"},
                                             {"zero_optimization.stage", "1"},
                                             {"optimizer.type", "dion"},
                                             {"optimizer.dion_decoupled", "true"},
                                             {"optimizer.dion_average_interval", "2"},
                                             {"gradient_clipping.max_norm", "0"}})},
        {"parameter servers", with(plain, {{"parallelism.data_parallel_shard_degree", "2"},
                                           {"zero_optimization.stage", "2"},
                                           {"parallelism.parameter_servers", "1"}})},
        {"latents and commands", with(plain, {{"model.kv_lora_rank", "8"},
                                              {"model.qk_nope_head_dim", "4"},
                                              {"model.qk_rope_head_dim", "4"},
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
      if (values.empty() || is_idle_pair(*first, *second)) continue;
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
  KeyValues values_;
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
    if (name == "sparse sums")
      continue;  // six steps don't reach the epochs that its keys are about
    SCOPED_TRACE(name);
    try_pairs(folder_, scene, true, 200);
  }
}

class KeysSlow : public Keys {};

TEST_F(KeysSlow, EachAloneInEveryRecipeWithEveryValue) {
  write_more_data();
  change_each(folder_, scenes(), scenes().size(), true);
}

// A test for each recipe, because one takes several minutes.
class KeysOfARecipeSlow : public Keys, public ::testing::WithParamInterface<std::size_t> {};

// All pairs of a block, and all that a refusal names together.
TEST_P(KeysOfARecipeSlow, AllPairsOfABlockAndAllThatARuleNamesTogether) {
  write_more_data();
  const auto [name, scene] = scenes().at(GetParam());
  SCOPED_TRACE(name);
  const auto together = try_pairs(folder_, scene, true, 1);
  Comparison comparison(folder_);
  for (const auto& [a, b] : together) comparison.change_both(scene, *a, *b);
  fmt::print("{}: {} pairs of rules, {} runs\n", name, together.size(), comparison.num_runs());
}

constexpr std::size_t kNumScenes = 10;

TEST_F(KeysSlow, EveryRecipeHasATestOfItsPairs) {
  EXPECT_EQ(scenes().size(), kNumScenes);
}

INSTANTIATE_TEST_SUITE_P(Recipes, KeysOfARecipeSlow, ::testing::Range<std::size_t>(0, kNumScenes));

TEST_F(KeysSlow, AllPairsInOneRecipe) {
  write_more_data();
  try_pairs(folder_, scenes()[0].second, false, 1);
}

}  // namespace
}  // namespace sherd::testing
