// Numbers that a double holds and a float doesn't: what computes must get a number in range.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

TEST(RecipeFloats, NumbersThatAFloatRoundsOutOfRangeAreRefused) {
  EXPECT_EQ(error_of_set("optimizer.betas=[0.9, 0.99999999999]"),
            "--set optimizer.betas=[0.9, 0.99999999999]: optimizer.betas is [0.9, 0.99999999999], "
            "which is 1 as the 32-bit float that computes; expected a list of two numbers from 0 "
            "to below 1.");
  EXPECT_EQ(
      error_of_set("optimizer.weight_decay=1e300"),
      "--set optimizer.weight_decay=1e300: optimizer.weight_decay is 1e300, which is infinity "
      "as the 32-bit float that computes; expected a number of at least 0.");
  EXPECT_EQ(
      error_of_set("optimizer.eps=1e-46"),
      "--set optimizer.eps=1e-46: optimizer.eps is 1e-46, which is 0 as the 32-bit float that "
      "computes; expected a number above 0.");
  EXPECT_NE(error_of_set("model.dropout=0.99999999").find("which is 1 as"), std::string::npos);
  EXPECT_EQ(error_of(kTinyRecipe, {"optimizer.eps=1.2e-38"}), "no error");
  EXPECT_NE(error_of_set("optimizer.eps=1e-40").find("which is 0 as"), std::string::npos)
      << "a subnormal, which some units take for 0";
  EXPECT_EQ(error_of(kTinyRecipe, {"optimizer.betas=[0, 0.9999999]"}), "no error");
}

// Whatever the table lets through arrives in range where it computes: every key with a number is
// tried with numbers at the edges of doubles and floats.
TEST(RecipeFloats, WhatTheTableTakesComputesInRange) {
  const std::array numbers = {"0",
                              "1e-320",
                              "1e-200",
                              "1e-46",
                              "1e-45",
                              "1e-38",
                              "1e-12",
                              "0.5",
                              "0.9999999",
                              "0.99999999",
                              "0.999999999999999",
                              "1",
                              "1.00000001",
                              "1e10",
                              "3.4028235e38",
                              "3.4028236e38",
                              "1e39",
                              "1e308"};
  for (const Field& field : recipe_fields()) {
    const bool is_pair = std::holds_alternative<Member<std::array<double, 2>>>(field.slot);
    if (!is_pair && !std::holds_alternative<Member<double>>(field.slot)) continue;
    for (const char* number : numbers) {
      const std::string text = is_pair ? fmt::format("[0.5, {}]", number) : std::string(number);
      ResolvedRecipe recipe;
      try {
        recipe =
            resolve(kTinyRecipe, {fmt::format("{}={}", field.key, text), "optimizer.type=muon"});
      } catch (const UsageError&) {
        continue;
      }
      const TrainingOptions options = training_options(recipe.values);
      const auto in_range = [&](double value) {
        EXPECT_TRUE(std::isfinite(value) && field.range.holds(value))
            << field.key << " " << text << " computes with " << value;
      };
      const optim::OptimizerOptions& optimizer = options.optimizer;
      if (field.key == "optimizer.betas") in_range(optimizer.beta1), in_range(optimizer.beta2);
      if (field.key == "optimizer.eps") in_range(optimizer.eps);
      if (field.key == "optimizer.momentum") in_range(optimizer.momentum);
      if (field.key == "optimizer.trust_coefficient") in_range(optimizer.trust_coefficient);
      if (field.key == "optimizer.weight_decay") in_range(optimizer.decay.rate);
      if (field.key == "gradient_clipping.max_norm") in_range(options.max_norm);
      if (field.key == "model.dropout") in_range(static_cast<float>(options.model.dropout));
      if (field.key == "model.norm_eps") in_range(static_cast<float>(options.model.norm_eps));
      if (field.key == "model.init_std") {
        EXPECT_GT(static_cast<float>(options.model.init_std / 200), 0.0f) << text;
      }
      EXPECT_TRUE(std::isfinite(optimizer.adamw_lr_ratio)) << field.key << " " << text;
      const auto lr = static_cast<float>(options.lr_schedule.lr);
      EXPECT_TRUE(std::isfinite(lr) && (lr > 0.0f || recipe.values.optimizer.lr == 0.0))
          << field.key << " " << text;
    }
  }
}

TEST(RecipeFloats, FirstWeightsFitIntoF16) {
  const std::string f16 = "mixed_precision.param_dtype=f16";
  EXPECT_EQ(error_of(kTinyRecipe, {f16, "model.init_std=1e5"}),
            "--set model.init_std=1e5: model.init_std is 100000: in f16 weights would be "
            "infinite. Use bf16, or an init_std between 1.2e-07 and 8188.");
  EXPECT_NE(error_of(kTinyRecipe, {f16, "model.init_std=1e-8"}).find("rounded to 0"),
            std::string::npos);
  EXPECT_EQ(error_of(kTinyRecipe, {"mixed_precision.param_dtype=bf16", "model.init_std=1e5"}),
            "no error");
  EXPECT_EQ(error_of(kTinyRecipe, {f16, "model.init_std=0.02"}), "no error");
}

}  // namespace
}  // namespace sherd::engine
