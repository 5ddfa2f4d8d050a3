// Sources, stages and validation sets of a recipe, and groups of parameters: lists of blocks.
#include <gtest/gtest.h>

#include "engine/recipe/fields.h"
#include "tests/engine/recipe/recipe_support.h"

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
  EXPECT_EQ(recipe.steps_of(recipe.data.stages[0]), 40);
  EXPECT_EQ(recipe.steps_of(recipe.data.stages[1]), 33) << "4,097 tokens, 128 in a step";
  EXPECT_EQ(recipe.steps_of(recipe.data.stages[2]), 0) << "to the end";
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
  EXPECT_NE(error_of(kTinyRecipe, {"data.stages=[{steps: 3}, {}]"})
                .find("data.stages needs "
                      "data.sources"),
            std::string::npos);
}

TEST(RecipeData, StagesFillTheRun) {
  EXPECT_NE(refused("data.stages=[{steps: 40}, {steps: 59}]")
                .find("data.stages end after 99 steps, but training.max_steps is 100."),
            std::string::npos);
  EXPECT_EQ(refused("data.stages=[{steps: 40}, {steps: 60}]"), "no error");
  EXPECT_EQ(refused("data.stages=[{steps: 40}, {steps: 600}]"), "no error") << "a shorter run";
  EXPECT_NE(refused("data.stages=[{}, {}]").find("data.stages[0] has neither steps nor tokens"),
            std::string::npos);
  EXPECT_NE(refused("data.stages=[{steps: 1, tokens: 1}, {}]").find("has steps and tokens"),
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
                .find("only adamw, adam, lion and muon's AdamW take them"),
            std::string::npos);
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

}  // namespace
}  // namespace sherd::engine
