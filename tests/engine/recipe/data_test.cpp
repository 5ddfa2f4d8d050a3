// Sources, stages and validation sets of a recipe, and groups of parameters: lists of blocks.
#include <gtest/gtest.h>

#include "engine/recipe/fields.h"
#include "engine/recipe/segments.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

constexpr const char* kMixed = R"(model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  vocab_size: 256
data:
  validation_fraction: 0
  sources:
    - path: english.txt
      weight: 0.7
    - {path: code/, name: c++, weight: 3e-1, max_epochs: 2}
  stages:
    - {steps: 40}
    - {tokens: 4097, weights: [0, 1]}
    - {weights: [1, 1]}
  validation_sets:
    - path: held/english.v2.txt
    - {path: held/code, batches: 3}
training:
  seq_length: 16
  global_batch_size: 8
  max_steps: 100
)";

std::string refused(const std::string& set) {
  return error_of(kMixed, {set});
}

TEST(RecipeData, ListsOfBlocksAreRead) {
  const Recipe recipe = resolve(kMixed).values;
  ASSERT_EQ(recipe.data.sources.size(), 2u);
  EXPECT_EQ(recipe.data.sources[0].path, "english.txt");
  EXPECT_EQ(recipe.data.sources[0].weight, 0.7);
  EXPECT_EQ(recipe.data.sources[1].name, "c++");
  EXPECT_EQ(recipe.data.sources[1].max_epochs, 2.0);
  ASSERT_EQ(recipe.data.stages.size(), 3u);
  const std::vector<StageSpan> spans = spans_of(recipe);
  EXPECT_EQ(spans[0].end_step, 40);
  EXPECT_EQ(spans[1].end_step, 73) << "4,097 tokens, 128 in a step";
  EXPECT_EQ(spans[2].end_step, 100) << "to the end";
  EXPECT_EQ(recipe.data.stages[1].weights, (std::vector<double>{0, 1}));
  EXPECT_EQ(recipe.data.validation_sets[1].batches, 3);
  EXPECT_EQ(recipe.data.validation_sets[0].batches, -1);
}

TEST(RecipeData, ARecipeIsPrintedWithItsListsAndResolvesToTheSame) {
  const ResolvedRecipe recipe =
      resolve(kMixed, {"optimizer.groups=[{parameters: [\"embedding.*\"], lr_factor: 0.5, betas: "
                       "[0.8, 0.9]}]"});
  const ResolvedRecipe again = resolve(recipe.yaml());
  EXPECT_EQ(again.values.data.sources, recipe.values.data.sources);
  EXPECT_EQ(again.values.data.stages, recipe.values.data.stages);
  EXPECT_EQ(again.values.data.validation_sets, recipe.values.data.validation_sets);
  EXPECT_EQ(again.values.optimizer.groups, recipe.values.optimizer.groups);
  EXPECT_NE(recipe.yaml().find("  sources: [{path: english.txt, weight: 0.7}, {path: code/, name: "
                               "c++, weight: 0.3, max_epochs: 2}]"),
            std::string::npos)
      << recipe.yaml();
}

TEST(RecipeData, NamesComeFromThePath) {
  EXPECT_EQ(name_of_path("texts/english.v2.txt"), "english");
  EXPECT_EQ(name_of_path("texts/code/"), "code");
  EXPECT_EQ(name_of_path(".hidden"), ".");
}

TEST(RecipeData, MistakesInAnItemAreNamedWithItsNumber) {
  const std::string where = "--set data.sources=";
  EXPECT_EQ(refused("data.sources=[{path: a}, {path: b, wieght: 2}]"),
            where +
                "[{path: a}, {path: b, wieght: 2}]: data.sources[1] has an unknown key "
                "\"wieght\"; did you mean \"weight\"?");
  EXPECT_EQ(refused("data.sources=[{weight: 2}]"),
            where + "[{weight: 2}]: data.sources[0] lacks \"path\".");
  EXPECT_EQ(refused("data.sources=[{path: a, weight: -1}]"),
            where +
                "[{path: a, weight: -1}]: data.sources[0].weight is -1; expected a number from "
                "0 to 1000000.");
  EXPECT_EQ(refused("data.sources=[{path: a, path: b}]"),
            where + "[{path: a, path: b}]: data.sources[0] has \"path\" twice. Keep one.");
  EXPECT_EQ(refused("data.sources=text"),
            where +
                "text: data.sources is \"text\"; expected a list of blocks, such as [{path: "
                "...}, {path: ...}].");
  EXPECT_EQ(refused("data.stages=[3]"),
            "--set data.stages=[3]: data.stages is [3]; expected a list of blocks, such as "
            "[{steps: ...}, {steps: ...}].");
}

TEST(RecipeData, SourcesThatCannotBeMixedAreRefused) {
  EXPECT_EQ(refused("data.path=a.txt"),
            "--set data.path=a.txt: data.sources and data.path are both set. Make the path one of "
            "the sources, or leave one out.");
  EXPECT_NE(refused("data.sources=[{path: a, format: text}]")
                .find("data.sources[0].format is text, but data.format is bytes; only text, bin "
                      "and chat can be mixed."),
            std::string::npos);
  EXPECT_NE(
      refused("data.sources=[{path: a, format: txt}]")
          .find("data.sources[0].format is \"txt\"; expected bytes, chars, bin, text or chat"),
      std::string::npos);
  EXPECT_NE(refused("data.sources=[{path: a/x.txt}, {path: b/x.bin}]")
                .find("data.sources[1] is called \"x\", as another is; give it another name."),
            std::string::npos);
  EXPECT_NE(error_of(kMixed, {"data.stages=[]", "data.sources=[{path: a, weight: 0}]"})
                .find("all weights are 0"),
            std::string::npos);
  EXPECT_NE(refused("training.num_epochs=2").find("2 sources have epochs of their own"),
            std::string::npos);
  EXPECT_NE(error_of(kTinyRecipe, {"data.stages=[{steps: 3, weights: [1]}, {}]"})
                .find("there is no data.sources whose weights they could be"),
            std::string::npos);
}

TEST(RecipeData, StagesFillTheRun) {
  EXPECT_NE(refused("data.stages=[{steps: 40}, {steps: 59}]")
                .find("data.stages end after 99 steps, but training.max_steps is 100."),
            std::string::npos);
  EXPECT_EQ(refused("data.stages=[{steps: 40}, {steps: 60}]"), "no error");
  EXPECT_EQ(refused("data.stages=[{steps: 40}, {steps: 600}]"), "no error") << "a shorter run";
  EXPECT_NE(refused("data.stages=[{}, {}]").find("data.stages[0] has no steps, tokens or epochs"),
            std::string::npos);
  EXPECT_NE(refused("data.stages=[{steps: 1, tokens: 1}, {}]")
                .find("has more than one of steps, tokens and epochs"),
            std::string::npos);
  EXPECT_NE(refused("data.stages=[{weights: [1]}]")
                .find("data.stages[0].weights has 1 numbers "
                      "for 2 sources."),
            std::string::npos);
  EXPECT_NE(refused("data.stages=[{weights: [0, 0]}]").find("data.stages[0]: all weights are 0"),
            std::string::npos);
}

TEST(RecipeData, StagesInTokensWithoutABatchSizeAreNoOtherErrorThanThat) {
  std::string text = kMixed;
  text.erase(text.find("  global_batch_size: 8\n"), 23);
  const std::string error = error_of(text, {"data.stages=[{tokens: 100}, {tokens: 100}]"});
  EXPECT_NE(error.find("the batch size is missing"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(RecipeData, TheRunsLossIsThatOfAKnownValidationSet) {
  EXPECT_EQ(refused("training.best_by=code"), "no error");
  EXPECT_EQ(refused("training.best_by=cod"),
            "--set training.best_by=cod: training.best_by is \"cod\", but the validation sets are "
            "code and english.");
  EXPECT_EQ(resolve(kMixed).values.data.validation_fraction, 0.0);
  EXPECT_NE(error_of(kTinyRecipe, {"training.best_by=x"}).find("sets are validation"),
            std::string::npos);
}

TEST(RecipeData, AGroupsPatternMustMatchATrainedParameter) {
  EXPECT_NE(refused("optimizer.groups=[{parameters: [\"embeding.*\"]}]")
                .find("optimizer.groups[0].parameters: \"embeding.*\" matches no parameter that is "
                      "trained; near are "),
            std::string::npos);
  EXPECT_NE(refused("optimizer.groups=[{parameters: []}]").find("parameters is empty"),
            std::string::npos);
  EXPECT_NE(error_of(kMixed,
                     {"optimizer.type=sgd", "optimizer.groups=[{parameters: [\"*\"], eps: 1e-6}]"})
                .find("only adamw, adam, lion and the AdamW of muon and dion take them"),
            std::string::npos);
}

TEST(RecipeGroups, BetasAndEpsThatNoParameterIsUpdatedWithAreRefused) {
  const auto with = [](const std::string& type, const std::string& group) {
    return error_of(kMixed,
                    {"optimizer.type=" + type, "optimizer.groups=[{parameters: " + group + "}]"});
  };
  const std::string matrices = "[\"block.*.mlp.*.weight\"], betas: [0.5, 0.6]";
  EXPECT_NE(with("muon", matrices).find("only matrices, which muon updates without them"),
            std::string::npos);
  EXPECT_NE(with("dion", matrices).find("only matrices, which dion updates without them"),
            std::string::npos);
  EXPECT_EQ(with("muon", matrices + ", optimizer: adamw"), "no error");
  EXPECT_EQ(with("muon", "[\"*\"], betas: [0.5, 0.6]"), "no error");
  EXPECT_NE(with("lion", "[\"*\"], eps: 0.1").find("eps is 0.1, but lion has no eps"),
            std::string::npos);
  EXPECT_EQ(with("lion", "[\"*\"], betas: [0.5, 0.6]"), "no error");
}

TEST(RecipeSchedule, AnInverseRootHasNoStepAtWhichItIsLowest) {
  const std::vector<std::string> sets = {"lr_scheduler.warmup_steps=3",
                                         "lr_scheduler.decay_steps=2"};
  const auto with = [&](const std::string& type) {
    return error_of(kMixed, {sets[0], sets[1], "lr_scheduler.type=" + type});
  };
  EXPECT_EQ(with("inverse_sqrt"), "no error");
  EXPECT_EQ(with("constant"), "no error");
  EXPECT_NE(with("cosine").find("warmup_steps is 3, more than decay_steps 2"), std::string::npos);
}

TEST(RecipeSchedule, TheDecayOfWsdIsCountedInStepsTokensOrAShare) {
  const auto steps = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(), "lr_scheduler.type=wsd");
    return resolve(kMixed, sets).values.lr_schedule().wsd_decay_steps;
  };
  EXPECT_EQ(steps({}), 20) << "a fifth of 100";
  EXPECT_EQ(steps({"lr_scheduler.wsd_decay_ratio=0.125"}), 13) << "12.5";
  EXPECT_EQ(steps({"lr_scheduler.wsd_decay_tokens=1281"}), 11) << "128 in a step";
  EXPECT_EQ(steps({"lr_scheduler.wsd_decay_steps=7"}), 7);
}

const std::vector<std::string> kShapes = {
    "checkpoint.interval=10",
    "data.stages=[{steps: 20, seq_length: 8}, {tokens: 4097, seq_length: 32, global_batch_size: "
    "16, micro_batch_size: 4}, {steps: 5, weights: [0, 1], seq_length: 32, global_batch_size: 16, "
    "micro_batch_size: 4}, {}]"};

std::vector<std::string> with_shapes(const std::vector<std::string>& sets) {
  std::vector<std::string> all = kShapes;
  all.insert(all.end(), sets.begin(), sets.end());
  return all;
}

TEST(RecipeShapes, ConsecutiveStagesOfOneShapeAreASegment) {
  const ResolvedRecipe recipe = resolve(kMixed, kShapes);
  const std::vector<Segment> segments = segments_of(recipe);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].text(recipe.values), "steps 1 to 20: 8 sequences of 8 tokens");
  EXPECT_EQ(segments[1].text(recipe.values), "steps 21 to 34: 16 sequences of 32 tokens")
      << "9 steps of 512 tokens, and 5";
  EXPECT_EQ(segments[2].text(recipe.values), "steps 35 to 100: 8 sequences of 16 tokens");
  EXPECT_EQ(segments[1].recipe.values.training.gradient_accumulation_steps, 4);
  EXPECT_EQ(segments[1].recipe.values.model.max_seq_length, 32);
  EXPECT_EQ(segments[0].recipe.values.model.max_seq_length, 32) << "one model";
  EXPECT_EQ(segments[1].recipe.values.data.stages.size(), 2u);
  EXPECT_EQ(segments[1].recipe.values.data.stages[0].steps, 9);
  EXPECT_TRUE(segments[2].cuts_anew);
}

TEST(RecipeShapes, ARateFollowsTheBatchSize) {
  std::vector<std::string> sets = {"checkpoint.interval=10", "optimizer.lr=0.01",
                                   "data.stages=[{steps: 20}, {global_batch_size: 32}]"};
  const auto rate = [&](const std::string& scaling) {
    std::vector<std::string> all = sets;
    all.push_back("lr_scheduler.batch_size_scaling=" + scaling);
    return segments_of(resolve(kMixed, all)).back().recipe.values.lr_schedule().lr;
  };
  EXPECT_EQ(rate("none"), 0.01);
  EXPECT_EQ(rate("linear"), 0.04);
  EXPECT_EQ(rate("sqrt"), 0.02);
}

TEST(RecipeShapes, ADecayInTokensCountsTheStepsOfTheLastStages) {
  const auto steps = [](const std::string& stages, const std::string& tokens) {
    return resolve(kMixed, {"checkpoint.interval=10", "lr_scheduler.type=wsd", stages,
                            "lr_scheduler.wsd_decay_tokens=" + tokens})
        .values.lr_scheduler.wsd_decay_steps;
  };
  // 90 steps of 128 tokens, then 10 of 1,024.
  const std::string stages = "data.stages=[{steps: 90}, {seq_length: 128}]";
  EXPECT_EQ(steps(stages, "1025"), 2);
  EXPECT_EQ(steps(stages, "10240"), 10);
  EXPECT_EQ(steps(stages, "10369"), 12);
  // Before decay_steps, wherever the run ends.
  const auto before_80 = [](const std::string& stages, const std::string& tokens) {
    return resolve(kMixed, {"checkpoint.interval=10", "lr_scheduler.type=wsd",
                            "lr_scheduler.decay_steps=80", stages,
                            "lr_scheduler.wsd_decay_tokens=" + tokens})
        .values.lr_scheduler.wsd_decay_steps;
  };
  EXPECT_EQ(before_80(stages, "1025"), 9);
  EXPECT_EQ(before_80("data.stages=[{steps: 70}, {seq_length: 128}]", "10241"), 11);
}

TEST(RecipeShapes, WhatCantBeIsRefusedByItsStage) {
  EXPECT_NE(error_of(kMixed, with_shapes({"checkpoint.interval=0"}))
                .find(": data.stages change the sequence length or batch size, and a run does that "
                      "through a checkpoint, but checkpoint.interval is 0. Set it."),
            std::string::npos);
  EXPECT_EQ(error_of(kMixed, with_shapes({"parallelism.data_parallel_shard_degree=8"})),
            "data.stages[1]: a global_batch_size of 16 isn't a multiple of micro_batch_size 4 x 8 "
            "ranks = 32.");
  EXPECT_NE(error_of(kMixed, with_shapes({"model.positions=learned", "model.max_seq_length=16"}))
                .find("data.stages[1]: "),
            std::string::npos);
}

// A model that a tokenizer's ids mean something to isn't trained on bytes, unless it is asked for.
TEST(RecipeData, OfAFoldersModelIsTextIfTheFolderHasATokenizer) {
  const test::TempFolder folder;
  folder.write("model/config.json",
               R"({"model_type": "llama", "hidden_act": "silu", "vocab_size": 256,
                   "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "max_position_embeddings": 64})");
  const auto data = [&](const std::string& keys) {
    return resolve("model: {from: " + folder.file("model") + "}\ndata: {path: text.txt" + keys +
                   "}\ntraining: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n")
        .values.data;
  };
  EXPECT_EQ(data("").format, DataFormat::kBytes);
  folder.write("model/tokenizer.json", "{}");
  EXPECT_EQ(data("").format, DataFormat::kText);
  EXPECT_EQ(data("").tokenizer, folder.file("model"));
  EXPECT_EQ(data(", format: bytes").format, DataFormat::kBytes);
  EXPECT_EQ(data(", format: bytes").tokenizer, "");
}

}  // namespace
}  // namespace sherd::engine
