// Keys that do something only together with others: what a run says of them, and what is refused.
#include "engine/recipe/uses.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/recipe/fields.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Lines = std::vector<std::string>;

Lines notes(const std::vector<std::string>& sets) {
  return resolve(kTinyRecipe, sets).notes;
}

TEST(Uses, AreOfKeysEachOnce) {
  std::set<std::string_view> keys;
  for (const Field& field : recipe_fields()) {
    const Use* use = use_of(field.key);
    if (!use) continue;
    keys.insert(use->key);
    EXPECT_EQ(use->key, field.key);
    EXPECT_FALSE(use->when.empty() || use->when.ends_with('.')) << field.key;
  }
  EXPECT_GT(keys.size(), 60u);
}

TEST(Uses, ARecipeOfDefaultsHasNoIdleKeys) {
  EXPECT_EQ(notes({}), Lines{});
}

TEST(Uses, AKeyThatDoesNothingIsNamedWithWhatItNeeds) {
  EXPECT_EQ(notes({"optimizer.muon_dtype=bf16"}),
            Lines{"--set: optimizer.muon_dtype has no effect: it is used by muon."});
  EXPECT_EQ(notes({"data.packing=none"}),
            Lines{"--set: data.packing has no effect: it is used with documents: separate."});
  EXPECT_EQ(notes({"lr_scheduler.warmup_ratio=0.1", "lr_scheduler.warmup_steps=5"}),
            Lines{"--set: lr_scheduler.warmup_ratio has no effect: it is used if warmup_steps "
                  "isn't set."});
  const std::string file = std::string(kTinyRecipe) + "  sample_top_k: 5\n";
  EXPECT_EQ(resolve(file).notes,
            Lines{"recipes/tiny.yaml:12: training.sample_top_k has no effect: it is used with "
                  "sample_tokens and a sample_temperature above 0."});
  EXPECT_EQ(resolve(file, {"training.sample_tokens=9"}).notes, Lines{});
}

// A key of the block counts where any source or validation set uses it.
TEST(Uses, AKeyThatASourceUsesIsNotNamed) {
  const auto with = [](const std::string& sources, const std::vector<std::string>& sets) {
    std::string text = kTinyRecipe;
    const std::string path = "  path: text.txt\n";
    text.replace(text.find(path), path.size(), "  sources: [" + sources + "]\n");
    return resolve(text, sets).notes;
  };
  EXPECT_EQ(
      with("{path: a}, {path: b, format: chat}", {"data.format=text", "data.tokenizer=t",
                                                  "data.documents=separate", "data.field=content"}),
      Lines{});
  EXPECT_EQ(with("{path: a, documents: separate}", {"data.packing=none"}), Lines{});
  EXPECT_EQ(with("{path: a}, {path: b, format: bin}",
                 {"data.format=text", "data.tokenizer=t", "data.token_bytes=4"}),
            Lines{});
  EXPECT_EQ(with("{path: a}", {"data.packing=none"}).size(), 1u);
}

// What a run has written sets every key.
TEST(Uses, AKeyWithTheValueThatItHasAnywayIsNotNamed) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{}, {"optimizer.type=sgd"}, {"lr_scheduler.type=constant"}}) {
    const std::string printed = resolve(kTinyRecipe, sets).yaml();
    EXPECT_EQ(resolve(printed).notes, Lines{}) << printed;
  }
}

// By hand, from the table of a model of two blocks.
TEST(Uses, APatternThatMatchesNoTrainedParameterIsAnErrorWithNearNames) {
  EXPECT_EQ(error_of(kTinyRecipe, {"optimizer.no_decay=[embedding, \"*norm*\"]"}),
            "--set optimizer.no_decay=[embedding, \"*norm*\"]: optimizer.no_decay: \"embedding\" "
            "matches no parameter that is trained; near are embedding.token.weight. Patterns match "
            "whole names: \"embedding.*\".");
  EXPECT_NE(error_of(kTinyRecipe, {"optimizer.no_decay=[\"attention.*\"]"})
                .find("near are block.0.attention.qkv.weight and block.0.attention.output.weight."),
            std::string::npos);
  EXPECT_NE(error_of(kTinyRecipe, {"optimizer.no_decay=[\"*.bias\"]"})
                .find("near are embedding.token.weight, block.0.norm1.weight, "),
            std::string::npos)
      << "all there are, where no name has such letters";
  EXPECT_EQ(error_of(kTinyRecipe, {"optimizer.no_decay=[\"*.bias\"]", "model.bias=true"}),
            "no error");
  for (const char* pattern : {"block.1.*", "head.weight", "*", "final_norm.weight"}) {
    EXPECT_EQ(error_of(kTinyRecipe, {fmt::format("optimizer.no_decay=[\"{}\"]", pattern)}),
              "no error");
  }
}

TEST(Uses, APatternForFrozenParametersMatchesNothing) {
  const std::vector<std::string> adapter = {"adapter.type=lora", "checkpoint.init_from=x"};
  const auto error = [&](const std::string& pattern) {
    std::vector<std::string> sets = adapter;
    sets.push_back("optimizer.no_decay=[\"" + pattern + "\"]");
    return error_of(kTinyRecipe, sets);
  };
  EXPECT_NE(error("embedding.*").find("matches no parameter that is trained"), std::string::npos);
  EXPECT_EQ(error("*.lora_b"), "no error");
}

TEST(Uses, TheBestCheckpointNeedsSomethingToValidateWith) {
  const std::vector<std::string> best = {"checkpoint.keep_best=1", "checkpoint.interval=10",
                                         "training.eval_interval=10"};
  EXPECT_EQ(error_of(kTinyRecipe, best), "no error");
  std::vector<std::string> without = best;
  without.push_back("data.validation_fraction=0");
  EXPECT_EQ(error_of(kTinyRecipe, without),
            "--set checkpoint.keep_best=1: checkpoint.keep_best is 1, but data.validation_fraction "
            "is 0: there is no validation loss to compare. Set it, or data.validation_path.");
}

// A run that began before these rules is still evaluated and exported.
TEST(Uses, TheRecipeOfARunThatExistsIsTakenAsItIs) {
  RecipeRequest request{.path = "kept", .text = kTinyRecipe, .sets = {}, .ranks = {}};
  request.sets = {"optimizer.no_decay=[nothing]", "checkpoint.keep_best=1",
                  "checkpoint.interval=10",       "training.eval_interval=10",
                  "data.validation_fraction=0",   "optimizer.muon_dtype=bf16"};
  EXPECT_THROW(resolve_recipe(request), RecipeErrors);
  request.is_kept = true;
  EXPECT_EQ(resolve_recipe(request).notes, Lines{});
}

}  // namespace
}  // namespace sherd::engine
