// What a good recipe means: defaults, derived values, overrides, origins and the printed form.
#include "engine/recipe/recipe.h"

#include <gtest/gtest.h>

#include <sstream>

#include "engine/recipe/fields.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

using Kind = Origin::Kind;

TEST(Recipe, FillsInTheTablesDefaults) {
  const Recipe recipe = resolve(kTinyRecipe).values;
  EXPECT_EQ(recipe.run.seed, 1u);
  EXPECT_EQ(recipe.model.norm, NormChoice::kRmsNorm);
  EXPECT_FALSE(recipe.model.bias);
  EXPECT_EQ(recipe.optimizer.lr, 3e-4);
  EXPECT_EQ(recipe.optimizer.betas, (std::array{0.9, 0.95}));
  EXPECT_EQ(recipe.lr_scheduler.type, optim::ScheduleType::kCosine);
  EXPECT_EQ(recipe.gradient_clipping.max_norm, 1.0);
  EXPECT_EQ(recipe.metrics.trace_steps, std::nullopt);
}

TEST(Recipe, DerivesWhatFollowsFromOtherValues) {
  const Recipe recipe = resolve(kTinyRecipe).values;
  EXPECT_EQ(recipe.run.name, "tiny");
  EXPECT_EQ(recipe.run.output_dir, "runs/tiny");
  EXPECT_EQ(recipe.model.num_kv_heads, 4);
  EXPECT_EQ(recipe.model.ffn_hidden_size, 192);  // 8/3 * 64 = 170.7, up to a multiple of 64
  EXPECT_EQ(recipe.model.max_seq_length, 16);
  EXPECT_EQ(recipe.data.validation_fraction, 0.1);
  EXPECT_EQ(recipe.lr_scheduler.decay_steps, 100);
  EXPECT_EQ(recipe.zero_optimization.grad_sync, GradSync::kBoundary);
}

TEST(Recipe, WarmUpMayBeAPartOfTheSteps) {
  const auto steps = [](std::vector<std::string> sets) {
    return resolve(kTinyRecipe, sets).values.lr_scheduler.warmup_steps;
  };
  EXPECT_EQ(steps({}), 0);
  EXPECT_EQ(steps({"lr_scheduler.warmup_ratio=0.03"}), 3);  // of 100
  EXPECT_EQ(steps({"lr_scheduler.warmup_ratio=0.031"}), 4);
  EXPECT_EQ(steps({"lr_scheduler.warmup_ratio=0.03", "training.max_steps=10"}), 1);
  EXPECT_EQ(steps({"lr_scheduler.warmup_ratio=0.03", "lr_scheduler.warmup_steps=7"}), 7);
}

TEST(Recipe, DerivedValuesFollowTheChoicesTheyDependOn) {
  EXPECT_EQ(resolve(kTinyRecipe, {"model.activation=gelu"}).values.model.ffn_hidden_size, 256);
  EXPECT_EQ(resolve(kTinyRecipe, {"model.hidden_size=4096"}).values.model.ffn_hidden_size, 10944);
  EXPECT_EQ(resolve(kTinyRecipe, {"run.name=other"}).values.run.output_dir, "runs/other");
  EXPECT_EQ(resolve(kTinyRecipe, {"data.validation_path=v"}).values.data.validation_fraction, 0.0);
  for (const auto& [stage, sync] :
       {std::pair("1", GradSync::kBoundary), std::pair("2", GradSync::kEveryMicroStep),
        std::pair("3", GradSync::kEveryMicroStep)}) {
    const std::string set = std::string("zero_optimization.stage=") + stage;
    EXPECT_EQ(resolve(kTinyRecipe, {set}).values.zero_optimization.grad_sync, sync) << set;
  }
}

TEST(Recipe, TwoBatchKeysGiveTheThird) {
  const auto batch = [](const std::vector<std::string>& sets, std::int64_t ranks) {
    std::string text = kTinyRecipe;
    text.erase(text.find("  global_batch_size"), std::string("  global_batch_size: 8\n").size());
    const auto training = resolve(text, sets, ranks).values.training;
    return std::array{training.global_batch_size, training.micro_batch_size,
                      training.gradient_accumulation_steps};
  };
  const std::string global = "training.global_batch_size=24", micro = "training.micro_batch_size=4",
                    accumulation = "training.gradient_accumulation_steps=3";
  using Batch = std::array<std::int64_t, 3>;
  EXPECT_EQ(batch({global, micro}, 2), (Batch{24, 4, 3}));
  EXPECT_EQ(batch({global, accumulation}, 2), (Batch{24, 4, 3}));
  EXPECT_EQ(batch({micro, accumulation}, 2), (Batch{24, 4, 3}));
  EXPECT_EQ(batch({global, micro, accumulation}, 2), (Batch{24, 4, 3}));
  EXPECT_EQ(batch({global, micro}, 1), (Batch{24, 4, 6}));
  EXPECT_EQ(batch({global}, 3), (Batch{24, 8, 1}));
  EXPECT_EQ(batch({micro}, 3), (Batch{12, 4, 1}));
}

TEST(Recipe, WholeNumbersMayBeWrittenWithAnExponentOrAPoint) {
  EXPECT_EQ(resolve(kTinyRecipe, {"training.max_steps=1e3"}).values.training.max_steps, 1000);
  EXPECT_EQ(resolve(kTinyRecipe, {"training.max_steps=2.5e3"}).values.training.max_steps, 2500);
  EXPECT_EQ(resolve(kTinyRecipe, {"training.max_steps=50.0"}).values.training.max_steps, 50);
  EXPECT_EQ(resolve(kTinyRecipe, {"training.max_steps=+7"}).values.training.max_steps, 7);
}

TEST(Recipe, TakesSeedsUpToTheLast64BitNumber) {
  EXPECT_EQ(resolve(kTinyRecipe, {"run.seed=18446744073709551615"}).values.run.seed, ~0ull);
}

TEST(Recipe, ReadsLists) {
  const Recipe recipe = resolve(kTinyRecipe, {"optimizer.betas=[0.8, 0.99]",
                                              "optimizer.no_decay=[\"embedding.*\", head.weight]",
                                              "metrics.trace_steps=[3, 5]"})
                            .values;
  EXPECT_EQ(recipe.optimizer.betas, (std::array{0.8, 0.99}));
  EXPECT_EQ(recipe.optimizer.no_decay, (std::vector<std::string>{"embedding.*", "head.weight"}));
  EXPECT_EQ(recipe.metrics.trace_steps, (StepRange{3, 5}));
}

TEST(Recipe, TextGivenWithSetStandsAsItIsUnlessQuoted) {
  const auto path = [](const std::string& text) {
    return resolve(kTinyRecipe, {"data.path=" + text}).values.data.path;
  };
  EXPECT_EQ(path("*.txt"), "*.txt");
  EXPECT_EQ(path("a: b, #c=[d]"), "a: b, #c=[d]");
  EXPECT_EQ(path("\"a b\""), "a b");
  EXPECT_EQ(path("12"), "12");
}

TEST(Recipe, LaterSetsWin) {
  const ResolvedRecipe resolved = resolve(kTinyRecipe, {"run.seed=2", "run.seed=3"});
  EXPECT_EQ(resolved.values.run.seed, 3u);
}

TEST(Recipe, EveryValueKnowsWhereItCameFrom) {
  const ResolvedRecipe resolved = resolve(kTinyRecipe, {"run.seed=2"}, 4);
  const auto expect = [&](std::string_view key, Kind kind, std::string_view text) {
    EXPECT_EQ(resolved.origin(key).kind, kind) << key;
    EXPECT_EQ(resolved.origin(key).text, text) << key;
  };
  expect("model.hidden_size", Kind::kFile, "recipes/tiny.yaml:3");
  expect("training.max_steps", Kind::kFile, "recipes/tiny.yaml:11");
  expect("run.seed", Kind::kSet, "--set");
  expect("parallelism.data_parallel_shard_degree", Kind::kRanks, "--ranks");
  expect("optimizer.lr", Kind::kDefault, "default");
  expect("training.micro_batch_size", Kind::kDerived, "derived");
  expect("training.gradient_accumulation_steps", Kind::kDerived, "derived");
}

TEST(Recipe, ABlockWhoseKeysAreAllCommentedOutIsEmpty) {
  EXPECT_EQ(resolve(std::string(kTinyRecipe) + "optimizer:\n  # lr: 1\n").values.optimizer.lr,
            3e-4);
}

TEST(Recipe, PrintsEachLineWithItsOrigin) {
  const std::string yaml = resolve(kTinyRecipe, {"run.seed=2"}).yaml();
  std::istringstream lines(yaml);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "run:");
  std::getline(lines, line);
  EXPECT_TRUE(line.starts_with("  name: tiny  ") && line.ends_with("  # derived")) << line;
  EXPECT_NE(yaml.find("# --set\n"), std::string::npos);
  EXPECT_NE(yaml.find("# recipes/tiny.yaml:11\n"), std::string::npos);
}

/// Every value of `a` as text, by resolving what it prints.
void expect_round_trip(const ResolvedRecipe& resolved) {
  const ResolvedRecipe again = resolve(resolved.yaml());
  for (const Field& field : recipe_fields()) {
    EXPECT_EQ(again.origin(field.key).kind, Kind::kFile) << field.key;
  }
  // The printed forms differ in their comments only.
  const auto without_comments = [](const std::string& yaml) {
    std::istringstream lines(yaml);
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      out += line.substr(0, line.rfind("  # ")).substr(0, line.find_last_not_of(' ') + 1) + '\n';
      while (out.ends_with(" \n")) out.erase(out.size() - 2, 1);
    }
    return out;
  };
  EXPECT_EQ(without_comments(again.yaml()), without_comments(resolved.yaml()));
  EXPECT_EQ(again.values.run.name, resolved.values.run.name);
  EXPECT_EQ(again.values.run.seed, resolved.values.run.seed);
  EXPECT_EQ(again.values.data.path, resolved.values.data.path);
  EXPECT_EQ(again.values.training.sample_prompt, resolved.values.training.sample_prompt);
  EXPECT_EQ(again.values.optimizer.lr, resolved.values.optimizer.lr);
  EXPECT_EQ(again.values.optimizer.no_decay, resolved.values.optimizer.no_decay);
  EXPECT_EQ(again.values.metrics.trace_steps, resolved.values.metrics.trace_steps);
}

TEST(Recipe, WhatItPrintsIsARecipeForTheSameRun) {
  expect_round_trip(resolve(kTinyRecipe));
  expect_round_trip(resolve(
      kTinyRecipe,
      {"run.seed=18446744073709551615", "optimizer.lr=0.1234567890123456789",
       "data.path=\"a # b: 'c' \\\"d\\\" \\\\ \\n\\t\\x01 é\"", "training.sample_prompt= null ",
       "run.name=null", "run.output_dir=true", "optimizer.no_decay=['*.weight', \"*[a, b]*\"]",
       "metrics.trace_steps=[1, 100]", "data.validation_path=v", "zero_optimization.stage=3"},
      4));
  expect_round_trip(resolve(
      kTinyRecipe,
      {"mixed_precision.param_dtype=f16", "mixed_precision.reduce_dtype=f16",
       "mixed_precision.optimizer_state_dtype=bf16", "mixed_precision.stochastic_rounding=true",
       "loss_scaling.min_scale=0.125", "loss_scaling.on_min_scale=hold",
       "activation_checkpointing.mode=full", "zero_optimization.grad_sync=every_micro_step",
       "optimizer.type=muon", "optimizer.adamw_lr=1e-7"}));
}

TEST(Recipe, ShippedRecipesResolve) {
  const auto shipped = [](const std::string& name, const std::vector<std::string>& sets = {}) {
    return resolve_recipe(
        {.path = SHERD_SOURCE_DIR "/recipes/" + name, .text = {}, .sets = sets, .ranks = {}});
  };
  const Recipe quickstart = shipped("quickstart.yaml").values;
  EXPECT_EQ(quickstart.world_size(), 2);
  EXPECT_EQ(quickstart.zero_optimization.stage, 3);

  const Recipe nano = shipped("shakespeare_char_cpu.yaml", {"data.path=input.txt"}).values;
  EXPECT_EQ(nano.training.micro_batch_size, 12);
  EXPECT_EQ(nano.lr_schedule().decay_steps, 2000);

  const Recipe gpt2 = shipped("gpt2_124m.yaml").values;
  EXPECT_EQ(gpt2.training.gradient_accumulation_steps, 5);
  EXPECT_EQ(gpt2.model.ffn_hidden_size, 3072);

  const Recipe llama = shipped("llama_1b.yaml").values;
  EXPECT_EQ(llama.model.num_kv_heads, 8);
  expect_round_trip(shipped("llama_1b.yaml"));
}

}  // namespace
}  // namespace sherd::engine
