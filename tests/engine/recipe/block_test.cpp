// What a block is made of, and what differs from layer to layer: what follows from other keys, and
// what is refused.

#include <gtest/gtest.h>

#include "engine/train/layout/training_options.h"
#include "engine/train/model_shape.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

model::ModelShape shape_of(const std::vector<std::string>& sets) {
  return model_shape(resolve(kTinyRecipe, sets).values);
}

TEST(BlockKeys, SingleBiasesFollowBiasUnlessTheySayOtherwise) {
  const auto all = shape_of({"model.bias=true", "model.norm=layernorm"}).biases;
  EXPECT_TRUE(all.norm && all.qkv && all.output && all.mlp);
  const auto rms = shape_of({"model.bias=true"}).biases;
  EXPECT_TRUE(!rms.norm && rms.qkv && rms.output && rms.mlp);
  const auto only = shape_of({"model.qkv_bias=true"}).biases;
  EXPECT_TRUE(!only.norm && only.qkv && !only.output && !only.mlp);
  const auto norms = shape_of({"model.norm=layernorm", "model.norm_bias=true"}).biases;
  EXPECT_TRUE(norms.norm && !norms.qkv && !norms.output && !norms.mlp);
}

TEST(BlockKeys, HeadsNeedNotDivideTheWidthWhereTheirOwnIsGiven) {
  const auto shape = shape_of({"model.num_attention_heads=5", "model.head_width=24"});
  EXPECT_EQ(shape.head_width(), 24);
  EXPECT_EQ(shape.qkv_width(), 15 * 24);
}

TEST(BlockKeys, PatternsRepeatOverTheLayers) {
  const auto shape = shape_of({"model.num_layers=7", "model.window=4", "model.window_layers=110",
                               "model.rope_layers=10", "model.window_rope_theta=100"});
  ASSERT_EQ(shape.rotary.size(), 2u);
  EXPECT_EQ(shape.rotary[0].theta, 10000.0);
  EXPECT_EQ(shape.rotary[1].theta, 100.0);
  const std::int64_t windows[] = {4, 4, 0, 4, 4, 0, 4};
  const int tables[] = {1, -1, 0, -1, 1, -1, 1};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(shape.layer(i).window, windows[i]) << i;
    EXPECT_EQ(shape.layer(i).rotary, tables[i]) << i;
  }
}

TEST(BlockKeys, OneTableServesAllLayersThatTurnAlike) {
  EXPECT_EQ(shape_of({"model.window=4", "model.window_layers=10"}).rotary.size(), 1u);
  const std::vector<std::string> scaled = {"model.window=4", "model.rope_scaling=linear",
                                           "model.rope_factor=8"};
  EXPECT_EQ(shape_of(scaled).rotary.size(), 1u);
  auto apart = scaled;
  apart.push_back("model.window_rope_scaling=false");
  const auto shape = shape_of(apart);
  ASSERT_EQ(shape.rotary.size(), 2u);
  EXPECT_EQ(shape.rotary[1].scaling, kernels::RotaryScaling::kNone);
}

TEST(BlockKeys, FlopsCountTheKeysThatAWindowLeaves) {
  const auto full = shape_of({}), half = shape_of({"model.window=8"});
  // 16 positions: 8 keys on average, or 8 - 64 / 32 = 6 in each of two layers, 12 H K each.
  EXPECT_EQ(flops_per_token(full) - flops_per_token(half), 2 * 12.0 * 2 * 64);
}

TEST(BlockKeys, WhatCannotGoTogetherIsRefusedByName) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return error_of(kTinyRecipe, sets);
  };
  EXPECT_EQ(
      refused({"model.block=parallel", "model.norm_placement=post"}),
      "--set model.norm_placement=post: model.norm_placement isn't pre, but parallel blocks have "
      "their norms before the branches. "
      "Use norm_placement: pre, or block: sequential.");
  EXPECT_EQ(
      refused({"model.norm_bias=true"}),
      "--set model.norm_bias=true: model.norm_bias is true, but rmsnorm has no bias. Use norm: "
      "layernorm, or leave it out.");
  EXPECT_EQ(refused({"model.window_layers=12"}),
            "--set model.window_layers=12: model.window_layers is \"12\"; write 1 or 0 for each "
            "layer, such as \"1110\", at most 10000.");
  EXPECT_EQ(refused({"model.rope_fraction=0.1"}),
            "--set model.rope_fraction=0.1: model.rope_fraction is 0.1: 1 of a head of 16 would be "
            "rotated, which must be an even number and not 0.");
  EXPECT_EQ(refused({"model.rope_scaling=llama3"}),
            "--set model.rope_scaling=llama3: model.rope_original_length is 0; this rope_scaling "
            "needs the length of texts before it, at least 2.");
  EXPECT_EQ(refused({"model.rope_scaling=longrope", "model.rope_original_length=8",
                     "model.rope_short_factors=[1, 2, 3, 4, 5, 6, 7, 8]"}),
            "--set model.rope_scaling=longrope: model.rope_long_factors has 0 numbers; longrope "
            "needs one for each of the 8 rotated pairs (head_width 16 x rope_fraction 1 / "
            "2).");
}

TEST(BlockKeys, AGpuTakesWhateverABlockIsMadeOf) {
  for (const char* set :
       {"model.window=4", "model.attention_softcap=50", "model.attention_scale=0.1",
        "model.qk_norm=head", "model.qk_norm=per_head", "model.norm_offset=1",
        "model.activation=geglu", "model.logits_scale=0.5", "model.logits_softcap=30",
        "model.embedding_scale=8", "model.residual_scale=0.5", "model.rope_fraction=0.5",
        "model.rope_scaling=linear", "data.documents=separate", "model.norm_placement=sandwich",
        "model.qkv_bias=true"}) {
    EXPECT_EQ(error_of(kTinyRecipe, {set, "run.device=cuda"}), "no error") << set;
  }
}

}  // namespace
}  // namespace sherd::engine
