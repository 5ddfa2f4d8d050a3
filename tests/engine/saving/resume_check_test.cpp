// Which changes of a recipe make another run, which are reported, and what old checkpoints still contain.
#include "engine/saving/resume_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "engine/saving/saved_counters.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/engine/saving/changed_keys.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

using nlohmann::json;
constexpr std::uint64_t kData = 0x1234;

/// What a manifest's `global` has of this run.
json saved_by(const ResolvedRecipe& recipe) {
  return {{"run", *run_settings(recipe.values, {{0, kData}})}, {"recipe", recipe.yaml()}};
}

ResumeCheck check(const json& global, const std::vector<std::string>& sets) {
  return compare_runs(global, *run_settings(resolve(kTinyRecipe, sets).values, {{0, kData}}));
}

Keys keys_of(const std::vector<ResumeCheck::Difference>& differences) {
  Keys keys;
  for (const auto& difference : differences) keys.insert(difference.key);
  return keys;
}

TEST(ResumeCheck, EveryKeyThatIsntFreeIsRefusedOrSaid) {
  const json global = saved_by(resolve(kTinyRecipe));
  for (const auto& [key, change] : changed_keys()) {
    const ResumeCheck found = check(global, change.sets);
    EXPECT_EQ(keys_of(found.refused), change.refused) << key;
    EXPECT_EQ(keys_of(found.changed), change.changed) << key;
  }
  for (const Field& field : recipe_fields()) {
    EXPECT_EQ(changed_keys().contains(std::string(field.key)), field.on_resume != OnResume::kFree)
        << field.key << " needs a row in changed_keys.cpp, or has one too many";
  }
}

TEST(ResumeCheck, TheSameRecipeAndFreeKeysAreSilent) {
  const json global = saved_by(resolve(kTinyRecipe));
  const ResumeCheck same =
      check(global,
            {"run.name=other", "run.num_threads=3", "model.init_std=1", "training.sample_tokens=5",
             "training.eval_interval=7", "training.final_eval=whole", "checkpoint.interval=3",
             "activation_checkpointing.mode=full", "metrics.log_interval=1",
             "zero_optimization.stage=1", "zero_optimization.prefetch_depth=3"});
  EXPECT_TRUE(same.refused.empty()) << same.refused[0].key;
  EXPECT_TRUE(same.changed.empty()) << same.changed[0].key;
  EXPECT_EQ(changes_text(same), "");
  EXPECT_NO_THROW(require_same_run(same, "x"));
}

// A manifest is a file of anyone's, and a terminal obeys control characters.
TEST(ResumeCheck, ShowsNoControlCharacterAndNoEndlessValueOfACheckpoint) {
  json global = saved_by(resolve(kTinyRecipe));
  const std::string forged = "\x1b[2J\x07\x7f\xc2\x9b" + std::string(100'000, 'x');
  global["run"]["optimizer.lr"] = forged;
  global["run"]["model.norm"] = forged;
  const ResumeCheck found = check(global, {});
  const std::string changes = changes_text(found);
  const std::string refusal =
      test::error_text<UsageError>([&] { require_same_run(found, "step-1"); });
  for (const std::string& text : {changes, refusal}) {
    EXPECT_NE(text.find("?[2J???x"), std::string::npos) << text;
    EXPECT_LT(text.size(), 2000u);
  }
  EXPECT_EQ(shown("größer"), "größer");
}

TEST(ResumeCheck, OtherDataIsAnotherRun) {
  const json global = saved_by(resolve(kTinyRecipe));
  const auto other = run_settings(resolve(kTinyRecipe).values, {{0, kData + 1}});
  EXPECT_EQ(keys_of(compare_runs(global, *other).refused), Keys{"data (fingerprint)"});
}

TEST(ResumeCheck, SaysKeysAndBothValues) {
  const json global = saved_by(resolve(kTinyRecipe));
  const ResumeCheck found =
      check(global, {"model.norm=layernorm", "run.seed=2", "optimizer.lr=0.5"});
  EXPECT_EQ(changes_text(found),
            "unlike the checkpoint's run:\n  optimizer.lr: 0.5 (checkpoint: 0.0003)");
  try {
    require_same_run(found, "runs/x/checkpoints/step-0000000001");
    FAIL() << "another run is taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "runs/x/checkpoints/step-0000000001: model.norm is rmsnorm in the checkpoint and "
        "layernorm in the recipe; run.seed is 1 in the checkpoint and 2 in the recipe. "
        "Resume with the recipe of the checkpoint, or start again in another run.output_dir "
        "(checkpoint.init_from takes its weights).");
  }
}

/// As programs before this table wrote it: seven keys, two of them ordinals.
json old_global(const ResolvedRecipe& recipe, int optimizer, int dtype) {
  return {{"run",
           {{"run.seed", "1"},
            {"training.seq_length", 16},
            {"training.global_batch_size", 8},
            {"data (fingerprint)", "0000000000001234"},
            {"optimizer.type", optimizer},
            {"mixed_precision.param_dtype", dtype},
            {"model.dropout", 0.0}}},
          {"recipe", recipe.yaml()}};
}

TEST(ResumeCheck, OldCheckpointsAreReadThroughTheirOrdinalsAndTheirRecipe) {
  const std::vector<std::string> optimizers = {"adamw", "adam", "sgd", "lion",
                                               "lamb",  "lars", "muon"};
  for (int i = 0; i < std::ssize(optimizers); ++i) {
    const std::string set = "optimizer.type=" + optimizers[static_cast<std::size_t>(i)];
    EXPECT_TRUE(check(old_global(resolve(kTinyRecipe, {set}), i, 0), {set}).refused.empty()) << set;
    const ResumeCheck other =
        check(old_global(resolve(kTinyRecipe), i, 0), {i == 0 ? "optimizer.type=sgd" : set});
    EXPECT_EQ(other.refused.size(), i == 0 ? 1u : 0u) << set;
  }
  for (const auto& [ordinal, type] :
       {std::pair(0, "f32"), std::pair(1, "bf16"), std::pair(2, "f16")}) {
    const std::string set = std::string("mixed_precision.param_dtype=") + type;
    EXPECT_TRUE(check(old_global(resolve(kTinyRecipe, {set}), 0, ordinal), {set}).refused.empty());
  }
  const json old = old_global(resolve(kTinyRecipe), 0, 0);
  EXPECT_EQ(keys_of(check(old, {"optimizer.type=lion"}).refused), Keys{"optimizer.type"});
  // What isn't among the seven comes from the recipe.
  EXPECT_EQ(keys_of(check(old, {"model.rope_theta=5e5"}).refused), Keys{"model.rope_theta"});
  EXPECT_EQ(keys_of(check(old, {"optimizer.lr=1"}).changed), Keys{"optimizer.lr"});
  EXPECT_EQ(keys_of(check(old, {"model.dropout=0.5"}).refused), Keys{"model.dropout"});
  json unknown = old_global(resolve(kTinyRecipe), 7, 0);
  EXPECT_EQ(check(unknown, {}).refused.at(0).saved, "7");
}

TEST(ResumeCheck, RecipesOfOtherVersionsAreReadAsFarAsTheyGo) {
  json global = saved_by(resolve(kTinyRecipe));
  global.erase("run");
  std::string recipe = global.at("recipe");
  recipe += "a_block_to_come:\n  key: 1\n";
  recipe.replace(recipe.find("  rope_theta: 10000"), 19, "  rope_theta: 1e-99");
  recipe.erase(recipe.find("  allow_tf32"),
               recipe.find('\n', recipe.find("  allow_tf32")) + 1 - recipe.find("  allow_tf32"));
  recipe.erase(recipe.find("  decay_steps"),
               recipe.find('\n', recipe.find("  decay_steps")) + 1 - recipe.find("  decay_steps"));
  global["recipe"] = recipe;
  const ResumeCheck found = check(global, {"optimizer.lr=1"});
  EXPECT_EQ(keys_of(found.refused), (Keys{"data (fingerprint)", "model.rope_theta"}));
  EXPECT_EQ(keys_of(found.changed), Keys{"optimizer.lr"});
  EXPECT_EQ(keys_of(check(global, {"mixed_precision.allow_tf32=true"}).changed),
            Keys{"mixed_precision.allow_tf32"})
      << "a key that came later had its default";
}

// Stages begin at steps 0, 100 and 200.
TEST(ResumeCheck, OnlyStagesThatHaveBegunMustBeTheSame) {
  const ResolvedRecipe recipe = resolve(kTinyRecipe);
  const auto settings = [&](std::uint64_t second, std::int64_t third_step, std::uint64_t third) {
    return run_settings(recipe.values, {{0, kData}, {100, second}, {third_step, third}});
  };
  const json global = {{"run", *settings(2, 200, 3)}, {"recipe", recipe.yaml()}};
  const auto refused = [&](const std::shared_ptr<const json>& now, std::int64_t steps_done) {
    return keys_of(compare_runs(global, *now, steps_done).refused).contains("data (fingerprint)");
  };
  EXPECT_FALSE(refused(settings(2, 200, 4), 200)) << "the third has had no step";
  EXPECT_TRUE(refused(settings(2, 200, 4), 201));
  EXPECT_FALSE(refused(settings(2, 300, 3), 200)) << "a longer second stage";
  EXPECT_FALSE(refused(settings(2, 150, 3), 150)) << "a shorter one, before its new end";
  EXPECT_TRUE(refused(settings(2, 150, 3), 151));
  EXPECT_TRUE(refused(settings(9, 200, 3), 101));
  EXPECT_FALSE(refused(settings(9, 200, 3), 100));
  EXPECT_TRUE(refused(run_settings(recipe.values, {{0, kData + 1}}), 1));
  EXPECT_FALSE(refused(run_settings(recipe.values, {{0, kData}}), 100)) << "without later stages";
  EXPECT_TRUE(refused(run_settings(recipe.values, {{0, kData}}), 101));
  const std::string error = test::error_text<UsageError>(
      [&] { require_same_run(compare_runs(global, *settings(2, 150, 3), 180), "step-180"); });
  EXPECT_NE(error.find("; data.stages differ from step 151 on, and stages that have begun can't"),
            std::string::npos)
      << error;
}

TEST(ResumeCheck, ManifestsWithoutASensibleRunAreRefused) {
  for (const json& global : {json::object(), json(1), json{{"run", 3}, {"recipe", 4}},
                             json{{"run", json::object()}, {"recipe", "[[["}}}) {
    const Keys refused = keys_of(check(global, {}).refused);
    EXPECT_TRUE(refused.contains("model.num_layers") && refused.contains("data (fingerprint)"))
        << global;
  }
}

TEST(ResumeCheck, WeightsOfAnotherModelAreSaidWhenTheyStartARun) {
  const json global = saved_by(resolve(kTinyRecipe));
  const auto settings = run_settings(
      resolve(kTinyRecipe, {"model.norm=layernorm", "model.dropout=0.1", "run.seed=3"}).values,
      {{0, 1}});
  const ResumeCheck found = compare_models(global, *settings);
  EXPECT_TRUE(found.refused.empty());
  EXPECT_EQ(keys_of(found.changed), Keys{"model.norm"});
}

TEST(ResumedScaler, ObeysTheRecipe) {
  using Mode = LossScaling::Mode;
  const optim::LossScaler::State saved{
      .scale = 1024, .clean_steps = 7, .credit = 5, .skips_in_a_row = 1, .total_skips = 9};
  ResumeCheck same, other_mode;
  other_mode.changed.push_back({"loss_scaling.mode", "none", "dynamic"});
  LossScaling options;
  options.mode = Mode::kDynamic;
  options.hysteresis = 9;
  EXPECT_EQ(resumed_scaler(saved, options, same), saved);
  options.hysteresis = 2;
  options.min_scale = 4096;
  const auto within = resumed_scaler(saved, options, same);
  EXPECT_EQ(within.scale, 4096);
  EXPECT_EQ(within.credit, 2);
  EXPECT_EQ(within.clean_steps, 7);
  const auto anew = resumed_scaler(saved, options, other_mode);
  EXPECT_EQ(anew.scale, 65536);
  EXPECT_EQ(anew.clean_steps, 0);
  EXPECT_EQ(anew.total_skips, 9);
  options.mode = Mode::kStatic;
  options.initial_scale_power = 3;
  EXPECT_EQ(resumed_scaler(saved, options, same).scale, 8);
  options.mode = Mode::kNone;
  EXPECT_EQ(resumed_scaler(saved, options, same).scale, 1);
}

TEST(ResumeCheck, AMeanCanBeginLaterButNotEarlier) {
  const ResumeCheck lower{.refused = {}, .changed = {{"averages.start_step", "1500", "500"}}};
  const auto refusal = [](const ResumeCheck& check, std::int64_t start, std::int64_t updates) {
    return test::error_text<UsageError>(
        [&] { require_same_mean(check, start, updates, "step-9"); });
  };
  EXPECT_EQ(refusal(lower, 500, 1000),
            "step-9: averages.start_step is 1500 in the checkpoint and 500 in the recipe, but 1000 "
            "updates are done. A mean can only begin later than that, or stay as it is.");
  EXPECT_EQ(refusal(lower, 500, 500), "(no error)");
  EXPECT_EQ(refusal({}, 500, 1000), "(no error)");
}

// Ids follow the order of the characters: one more in the middle shifts those after it.
TEST(OtherCharacters, AreFoundWhereIdsFirstDiffer) {
  const json global = {{"vocabulary", {97u, 99u, 233u}}};
  const auto other = [&](const std::u32string& texts) { return other_characters(global, texts); };
  EXPECT_EQ(other(U"ac\u00e9"), "");
  EXPECT_EQ(other(U"ac"), "");
  EXPECT_EQ(other(U"ac\u00e9\u00ea"), "");
  EXPECT_EQ(other(U"abc\u00e9"), "id 1 is \"c\" in the checkpoint and \"b\" in the recipe's texts");
  EXPECT_EQ(other(U"ac\u00e8"),
            "id 2 is \"\u00e9\" in the checkpoint and \"\u00e8\" in the recipe's texts");
  EXPECT_EQ(other_characters(json::object(), std::u32string(U"abc")), "");
  EXPECT_EQ(other_characters({{"vocabulary", json::array()}}, std::u32string(U"abc")), "");
}

}  // namespace
}  // namespace sherd::engine
