// Keys of z-loss, attention scores and QK-clip.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

TEST(RecipeStability, KeysReachTheTraining) {
  const TrainingOptions none = training_options(resolve(kTinyRecipe).values);
  EXPECT_EQ(none.model.z_loss, 0.0);
  EXPECT_FALSE(none.model.max_attention_logit);
  EXPECT_EQ(none.qk_clip_threshold, 0.0);

  const TrainingOptions logs =
      training_options(resolve(kTinyRecipe, {"metrics.log_max_attention_logit=true",
                                             "training.z_loss_multiplier=1e-4"})
                           .values);
  EXPECT_EQ(logs.model.z_loss, 1e-4);
  EXPECT_TRUE(logs.model.max_attention_logit);

  const TrainingOptions clips =
      training_options(resolve(kTinyRecipe, {"optimizer.qk_clip_threshold=50"}).values);
  EXPECT_EQ(clips.qk_clip_threshold, 50.0);
  EXPECT_EQ(clips.qk_clip_alpha, 0.5);
  EXPECT_TRUE(clips.model.max_attention_logit) << "the clip needs them";
}

TEST(RecipeStability, QkClipIsRefusedWhereScoresDontFollowTheWeights) {
  const std::string clip = "optimizer.qk_clip_threshold=50";
  EXPECT_NE(error_of(kTinyRecipe, {clip, "model.qk_norm=head"})
                .find("but model.qk_norm normalises queries and keys"),
            std::string::npos)
      << error_of(kTinyRecipe, {clip, "model.qk_norm=head"});
  EXPECT_NE(error_of(kTinyRecipe, {clip, "model.attention_softcap=50"})
                .find("but model.attention_softcap limits attention logits already"),
            std::string::npos);
  EXPECT_NE(error_of(kTinyRecipe, {clip, "adapter.type=lora", "checkpoint.init_from=x"})
                .find("but block.0.attention.qkv.weight is frozen, and QK-clip scales it"),
            std::string::npos)
      << error_of(kTinyRecipe, {clip, "adapter.type=lora", "checkpoint.init_from=x"});
  EXPECT_NE(
      error_of(kTinyRecipe, {clip, "optimizer.groups=[{parameters: [block.0.*], frozen: true}]"})
          .find("but block.0.attention.qkv.weight is frozen, and QK-clip scales it"),
      std::string::npos);
  EXPECT_NE(error_of(kTinyRecipe, {clip, "optimizer.qk_clip_alpha=1.5"}), "no error");
}

TEST(RecipeStability, NamesOfOtherProgramsLeadToTheKeys) {
  const auto leads = [](const std::string& block, const std::string& name, const std::string& key) {
    const std::string error = error_of(kTinyRecipe + (block + ":\n  " + name + ": 1\n"));
    EXPECT_NE(error.find("did you mean \"" + key + "\""), std::string::npos) << error;
  };
  for (const char* name : {"use_qk_clip", "qk_clip"}) {
    leads("optimizer", name, "optimizer.qk_clip_threshold");
  }
  leads("optimizer", "qk_clip_balancing_alpha", "optimizer.qk_clip_alpha");
  leads("metrics", "log_max_attention_logits", "metrics.log_max_attention_logit");
  for (const char* name : {"z_loss_weight", "z_loss_coef", "use_z_loss"}) {
    leads("optimizer", name, "training.z_loss_multiplier");
  }
}

}  // namespace
}  // namespace sherd::engine
