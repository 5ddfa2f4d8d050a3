// Keys of latent attention, attention sinks and biases of experts: what reaches the model, and what is refused.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "kernels/rotary_frequencies.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Sets = std::vector<std::string>;

Sets latent(Sets more = {}) {
  Sets sets = {"model.kv_lora_rank=12", "model.q_lora_rank=10", "model.qk_nope_head_dim=6",
               "model.qk_rope_head_dim=4", "model.v_head_dim=8"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void expect_refused(const Sets& sets, const std::string& why) {
  const std::string error = error_of(kTinyRecipe, sets);
  EXPECT_NE(error.find(why), std::string::npos) << error;
}

TEST(RecipeLatent, KeysReachTheModel) {
  const model::ModelShape shape = training_options(resolve(kTinyRecipe, latent()).values).model;
  EXPECT_EQ(shape.latent.kv_rank, 12);
  EXPECT_EQ(shape.latent.query_rank, 10);
  EXPECT_EQ(shape.head_width(), 10);
  EXPECT_EQ(shape.value_width(), 8);
  EXPECT_EQ(kernels::rotated_width(shape.rotary[0], shape.head_width()), 4);
  EXPECT_EQ(shape.layer(0).attention, model::AttentionKind::kLatent);
}

TEST(RecipeLatent, WidthsThatDontFitAreRefusedInOneLineEach) {
  expect_refused(
      latent({"model.qk_rope_head_dim=3"}),
      "model.qk_rope_head_dim is 3; with model.kv_lora_rank it must be even and above 0");
  expect_refused(latent({"model.qk_nope_head_dim=0"}), "it must be even and above 0");
  expect_refused(latent({"model.v_head_dim=11"}),
                 "model.v_head_dim is 11, more than the 10 of a key");
  expect_refused(latent({"model.head_width=16"}), "numbers. Leave it out.");
  expect_refused(latent({"model.num_kv_heads=1"}), "has its own keys. Leave it out.");
}

TEST(RecipeLatent, WhatLatentAttentionDoesntHaveIsRefusedByName) {
  for (const char* set : {"model.positions=learned", "model.rope_fraction=0.5",
                          "model.qk_norm=head", "model.qkv_bias=true", "model.norm=layernorm",
                          "model.block=parallel", "optimizer.qk_clip_threshold=50",
                          "parallelism.sum_order=canonical", "model.attention_sinks=true"}) {
    const std::string key = std::string(set).substr(0, std::string(set).find('='));
    const std::string error = error_of(kTinyRecipe, latent({set}));
    EXPECT_NE(error.find(key), std::string::npos) << set << ": " << error;
    EXPECT_NE(error.find("atent attention"), std::string::npos) << set << ": " << error;
  }
}

TEST(RecipeSinks, AreForRanksThatDivideSequences) {
  const Sets sets = {"model.attention_sinks=true", "parallelism.context_parallel_degree=2"};
  EXPECT_TRUE(training_options(resolve(kTinyRecipe, sets).values).model.sinks);
}

// Latent attention's heads are as wide as both their parts.
TEST(RecipeHeads, ThatAreTooWideForGpusAreRefusedThere) {
  Sets sets =
      latent({"model.qk_nope_head_dim=192", "model.qk_rope_head_dim=66", "run.device=cuda"});
  EXPECT_NE(error_of(kTinyRecipe, sets)
                .find("model.head_width is 258; GPUs compute heads up to 256 wide"),
            std::string::npos);
  sets[sets.size() - 2] = "model.qk_rope_head_dim=64";
  EXPECT_EQ(error_of(kTinyRecipe, sets).find("head_width"), std::string::npos);
}

TEST(RecipeRotatedNorm, IsAnRmsNormOfLayersThatRotate) {
  const Sets rotated = {"model.qk_norm=rotated", "model.rope_layers=10", "model.query_growth=0.5",
                        "model.query_step=4"};
  const model::ModelShape shape = training_options(resolve(kTinyRecipe, rotated).values).model;
  EXPECT_TRUE(shape.normalises_heads(0));
  EXPECT_FALSE(shape.normalises_heads(1));
  ASSERT_EQ(shape.rotary.size(), 2u);
  EXPECT_EQ(shape.layer(1).rotary, 1);
  EXPECT_TRUE(shape.rotary[0].rotates());
  EXPECT_FALSE(shape.rotary[1].rotates());
  const auto with = [&](const std::string& set) {
    Sets sets = rotated;
    sets.push_back(set);
    return sets;
  };
  expect_refused(with("model.norm=layernorm"), "model.qk_norm: rotated is an RMS norm");
  expect_refused(with("model.positions=learned"),
                 "model.qk_norm: rotated is of layers that rotate");
  expect_refused(with("parallelism.sum_order=canonical"),
                 "canonical, which isn't supported with this model.qk_norm");
}

TEST(RecipeQueryGrowth, NeedsRotaryPositionsWithoutLatents) {
  expect_refused({"model.query_growth=0.5", "model.positions=learned"},
                 "model.query_growth is 0.5, but it is for models with positions: rope");
  expect_refused(latent({"model.query_growth=0.5", "model.rope_layers=10"}),
                 "model.query_growth is 0.5, which latent attention doesn't have");
  expect_refused({"model.query_growth=0.5", "model.query_step=4", "model.rope_layers=10",
                  "model.qk_norm=head_after_rope"},
                 "normalises the queries afterwards, so it would change nothing");
}

TEST(RecipeHeadBias, IsOfWholeUntiedHeads) {
  EXPECT_TRUE(
      training_options(resolve(kTinyRecipe, {"model.head_bias=true"}).values).model.biases.head);
  expect_refused({"model.head_bias=true", "model.tie_embeddings=true"}, "a tied head has no bias");
  expect_refused({"model.head_bias=true", "parallelism.tensor_parallel_degree=2"},
                 "a head with a bias can't be divided yet");
}

TEST(RecipeExpertBiases, AreRefusedNextToACorrectionBias) {
  const Sets biases = {"moe.num_experts=4", "moe.bias=true"};
  EXPECT_TRUE(training_options(resolve(kTinyRecipe, biases).values).model.moe.biases);
  Sets both = biases;
  both.emplace_back("moe.correction_bias=true");
  expect_refused(both, "a router has one bias");
}

}  // namespace
}  // namespace sherd::engine
