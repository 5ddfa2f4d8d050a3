// Mixtures of experts in recipes: what is derived, and what is refused in one line.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string with_experts(const std::string& keys, const std::string& more = "") {
  return kTinyRecipe + ("moe:\n  num_experts: 4\n" + keys + more);
}

TEST(RecipeExperts, AreUnitsOfTheirOwnWithARouterInF32) {
  const Recipe recipe =
      resolve(with_experts("  layers: \"01\"\n", "mixed_precision:\n  param_dtype: bf16\n")).values;
  const TrainingOptions options = training_options(recipe);
  EXPECT_EQ(options.model.moe.experts, 4);
  EXPECT_EQ(options.model.moe.ffn_width, recipe.model.ffn_hidden_size);
  EXPECT_FALSE(options.model.has_experts(0));
  EXPECT_TRUE(options.model.has_experts(1));
  EXPECT_EQ(options.sharding_of({UnitRole::kLayer, 1, 1}).precision.parameters, DType::kBF16);
  EXPECT_EQ(options.sharding_of({UnitRole::kLayer, 1, 2}).precision.parameters, DType::kF32);
}

TEST(RecipeExperts, AreKeptInBalanceByALossUnlessABiasOrAFoldersTrainingDoesIt) {
  const auto loss = [](const std::string& keys, const std::string& more = "") {
    return resolve(with_experts(keys, more)).values.moe.balance_loss;
  };
  const std::string folder = "checkpoint:\n  init_from: somewhere\n";
  EXPECT_EQ(loss(""), 0.01);
  EXPECT_EQ(loss("  correction_bias: true\n"), 0.0);
  EXPECT_EQ(loss("", folder), 0.0);
  EXPECT_EQ(loss("  balance_loss: 0.5\n", folder), 0.5);
  const auto rate = [](const std::string& more) {
    return resolve(with_experts("  correction_bias: true\n", more)).values.moe.bias_update_rate;
  };
  EXPECT_EQ(rate(""), 0.001);
  EXPECT_EQ(rate(folder), 0.0);
}

TEST(RecipeExperts, ABiasDoesntMoveWhereItsRouterIsFrozen) {
  const auto refusal = [](const std::string& keys, const std::string& frozen) {
    return error_of(with_experts(
        "  correction_bias: true\n  layers: \"01\"\n" + keys,
        "optimizer:\n  groups:\n    - {parameters: [\"" + frozen + "\"], frozen: true}\n"));
  };
  EXPECT_NE(refusal("", "*.moe.router.*")
                .find("moe.bias_update_rate is 0.001, but block.1.moe.router.weight is frozen, and "
                      "its bias with it. Use moe.bias_update_rate: 0."),
            std::string::npos)
      << refusal("", "*.moe.router.*");
  EXPECT_EQ(refusal("  bias_update_rate: 0\n", "*.moe.router.*"), "no error");
  EXPECT_EQ(refusal("", "block.0.*"), "no error") << "a layer without experts";
}

TEST(RecipeExperts, OfPhimoeAreTwoWithoutScaleAndGroups) {
  const auto error = [](const std::string& keys) {
    return error_of(with_experts("  score: sparsemixer\n" + keys));
  };
  EXPECT_EQ(resolve(with_experts("  score: sparsemixer\n")).values.moe.jitter, 0.01);
  EXPECT_NE(error("  experts_per_token: 1\n")
                .find("moe.experts_per_token is 1; with moe.score: sparsemixer it must be 2."),
            std::string::npos);
  EXPECT_NE(error("  weight_scale: 2\n").find("moe.weight_scale is 2"), std::string::npos);
  EXPECT_NE(error("  num_groups: 2\n  kept_groups: 2\n").find("moe.num_groups is 2"),
            std::string::npos);
  EXPECT_NE(error("  correction_bias: true\n").find("moe.correction_bias is true"),
            std::string::npos);
}

TEST(RecipeExperts, WithBiasesReadInputsAsTheyAre) {
  EXPECT_NE(error_of(with_experts("  bias: true\n  weigh_input: true\n"))
                .find("moe.bias and moe.weigh_input are true"),
            std::string::npos);
}

TEST(RecipeExperts, ThatDontFitAreRefused) {
  EXPECT_EQ(error_of(with_experts("  experts_per_token: 5\n")),
            "recipes/tiny.yaml:14: moe.experts_per_token is 5, more than the 4 experts there are.");
  EXPECT_EQ(error_of(with_experts("  num_groups: 3\n")),
            "recipes/tiny.yaml:14: moe.num_groups is 3, which doesn't divide num_experts 4.");
  EXPECT_EQ(error_of(with_experts("  kept_groups: 2\n")),
            "recipes/tiny.yaml:14: moe.kept_groups is 2, more than the 1 groups there are.");
  EXPECT_EQ(error_of(with_experts("  num_groups: 4\n")),
            "recipes/tiny.yaml:14: moe.experts_per_token is 2, but kept_groups 1 of num_groups 4 "
            "leave 1 experts to choose from.");
  EXPECT_EQ(error_of(with_experts("  shared_gate: true\n")),
            "recipes/tiny.yaml:14: moe.shared_gate is true, but there is no shared expert. Set "
            "moe.shared_ffn_hidden_size, or leave the gate out.");
  EXPECT_EQ(error_of(with_experts("  layers: \"x\"\n")),
            "recipes/tiny.yaml:14: moe.layers is \"x\"; expected 1 or 0 for each layer, such as "
            "\"01\".");
  EXPECT_NE(error_of(with_experts("  layers: \"0\"\n")).find("so none of the"), std::string::npos);
}

TEST(RecipeExperts, AreRefusedWhereTheyArentSupported) {
  EXPECT_NE(error_of(with_experts("", "parallelism:\n  sum_order: canonical\n"))
                .find("parallelism.sum_order is canonical, which a model with experts can't have"),
            std::string::npos);
}

TEST(RecipeExperts, WhoseWidthsTensorRanksCantShareAreRefusedWithADegreeThatWorks) {
  const auto error = [](const std::string& keys) {
    return error_of(with_experts(keys, "parallelism:\n  tensor_parallel_degree: 4\n"));
  };
  EXPECT_EQ(error("  ffn_hidden_size: 16\n"), "no error");
  const std::string narrow = error("  ffn_hidden_size: 18\n");
  EXPECT_NE(narrow.find("experts of width 18"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("2 would do."), std::string::npos) << narrow;
  const std::string shared = error("  ffn_hidden_size: 16\n  shared_ffn_hidden_size: 9\n");
  EXPECT_NE(shared.find("experts of width 16, a shared one of 9"), std::string::npos) << shared;
  EXPECT_NE(shared.find("1 would do."), std::string::npos) << shared;
}

TEST(RecipeExperts, AreRefusedOnGpusWhereTheseCantComputeThem) {
  const auto error = [](const std::string& moe, const std::string& more) {
    return error_of(with_experts(moe, "run:\n  device: cuda\n" + more));
  };
  EXPECT_EQ(error("  weigh_input: true\n", "").find("weigh_input"), std::string::npos);
  EXPECT_NE(error("", "  cuda_graphs: true\n").find("graphs can't contain experts"),
            std::string::npos);
  const std::string tensor = "parallelism: {tensor_parallel_degree: 2}\n";
  EXPECT_NE(error("", "  deterministic: false\n" + tensor).find("must choose the same ones"),
            std::string::npos);
  EXPECT_EQ(error("", tensor).find("choose the same"), std::string::npos);
  EXPECT_EQ(error("  bias: true\n", "").find("experts"), std::string::npos);
}

TEST(RecipeExperts, AreKnownByTheNamesOfOtherPrograms) {
  const auto line = [](const std::string& key) {
    return error_of(kTinyRecipe + ("moe:\n  " + key + ": 2\n"));
  };
  EXPECT_NE(line("num_experts_per_tok").find("did you mean \"moe.experts_per_token\""),
            std::string::npos)
      << line("num_experts_per_tok");
  EXPECT_NE(line("moe_router_topk").find("moe.experts_per_token"), std::string::npos);
  EXPECT_NE(line("routed_scaling_factor").find("moe.weight_scale"), std::string::npos);
  EXPECT_NE(line("router_aux_loss_coef").find("x experts_per_token / (layers with experts)"),
            std::string::npos)
      << line("router_aux_loss_coef");
  EXPECT_NE(line("moe_expert_capacity_factor").find("no token is dropped"), std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
