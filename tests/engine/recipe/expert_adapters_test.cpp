// Adapters of mixtures: which names mean experts' matrices, and what is refused in one line.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/train/from_recipe.h"
#include "engine/train/model_shape.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Names = std::vector<std::string>;

Names with_experts(const Names& more) {
  Names sets = {"moe.num_experts=4", "moe.ffn_hidden_size=24", "adapter.type=lora",
                "checkpoint.init_from=x"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}
std::string error(const Names& more) {
  return error_of(kTinyRecipe, with_experts(more));
}
std::ptrdiff_t notes_of_frozen_experts(const ResolvedRecipe& recipe) {
  return std::ranges::count_if(recipe.notes, [](const std::string& note) {
    return note.starts_with("adapter: experts and routers stay frozen; adapter.targets trains");
  });
}

// An adapter has one shape in all layers.
TEST(RecipeExpertAdapters, AllMeansAttentionAndThatIsSaid) {
  const ResolvedRecipe recipe =
      resolve(kTinyRecipe, with_experts({"adapter.targets=[all-linear]"}));
  for (const std::string& target : recipe.values.adapter.targets) {
    EXPECT_TRUE(target.starts_with("attention.")) << target;
  }
  EXPECT_EQ(notes_of_frozen_experts(recipe), 1);
}

TEST(RecipeExpertAdapters, AreNamedByTheirMatricesWhicheverLayersHaveExperts) {
  for (const char* layers : {"\"1\"", "\"01\"", "\"10\""}) {
    const ResolvedRecipe recipe = resolve(
        kTinyRecipe, with_experts({std::string("moe.layers=") + layers,
                                   "adapter.targets=[moe.experts.gate, moe.experts.down]"}));
    EXPECT_EQ(notes_of_frozen_experts(recipe), 0);
    const model::ModelShape shape = model_shape(recipe.values);
    std::size_t targets = 0;
    for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
      targets += model::adapter_targets(shape, layer).size();
    }
    EXPECT_EQ(targets, std::string(layers) == "\"1\"" ? 4u : 2u);
  }
}

TEST(RecipeExpertAdapters, AreFoundByTheNamesOfFamilies) {
  const test::TempFolder folder;
  const std::string sizes =
      R"("vocab_size": 56, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,)";
  for (const char* type : {"mixtral", "qwen2_moe", "qwen3_moe"}) {
    folder.write(std::string(type) + "/config.json",
                 "{" + sizes + R"("moe_intermediate_size": 20, "hidden_act": "silu",
                 "shared_expert_intermediate_size": 28, "model_type": ")" +
                     type + "\"}");
  }
  const auto targets = [&](const std::string& model, const std::string& names) {
    const std::string text = "model: {from: " + folder.file(model) +
                             "}\ndata: {path: text.txt}\n"
                             "training: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n";
    return resolve(text, {"adapter.type=lora", "adapter.targets=" + names}).values.adapter.targets;
  };
  EXPECT_EQ(targets("mixtral", "[w1, w2, w3]"),
            (Names{"moe.experts.gate", "moe.experts.down", "moe.experts.up"}));
  EXPECT_EQ(targets("qwen3_moe", "[gate_proj]"), (Names{"moe.experts.gate"}));
  // As in PEFT, an end of a name means all modules that end so.
  EXPECT_EQ(targets("qwen2_moe", "[up_proj]"), (Names{"mlp.up", "moe.experts.up"}));
  EXPECT_EQ(targets("qwen2_moe", "[shared_expert.up_proj]"), (Names{"mlp.up"}));
}

TEST(RecipeExpertAdapters, RefuseInOneLine) {
  const std::string experts = "adapter.targets=[moe.experts.gate]";
  EXPECT_NE(error_of(kTinyRecipe, {"adapter.type=lora", "checkpoint.init_from=x", experts})
                .find("\"moe.experts.gate\" names no matrix of this model"),
            std::string::npos);
  EXPECT_EQ(error({experts, "adapter.rank=25"}),
            "--set adapter.rank=25: adapter.rank is 25, above the width of moe.experts.gate (24 x "
            "64). Use 24 or less.");
  EXPECT_EQ(error({experts, "adapter.dropout=0.1"}),
            "--set adapter.dropout=0.1: adapter.dropout is 0.1, but adapter.targets has "
            "moe.experts.gate, and adapters of experts have no dropout yet. Set adapter.dropout: "
            "0, or leave these targets out.");
  EXPECT_NE(error({experts, "run.device=cuda"}).find("adapters of experts are computed on CPUs"),
            std::string::npos);
  EXPECT_NE(error({experts, "adapter.modules_to_save=[moe.experts.up]"})
                .find("adapter.modules_to_save has moe.experts.up, which is trained whole"),
            std::string::npos);
  EXPECT_NE(error({"moe.layers=\"01\"", "adapter.targets=[mlp.up]"})
                .find("Name matrices of attention or of experts (moe.experts.gate, .up, .down)."),
            std::string::npos);
}

// An A reads and a B forms; of the four experts a token uses two.
TEST(RecipeExpertAdapters, CostWhatATokensExpertsDo) {
  const auto flops = [](const std::string& targets) {
    return flops_per_token(
        model_shape(resolve(kTinyRecipe, with_experts({"adapter.rank=4", targets})).values));
  };
  const double of_one = 4.0 * (8 * 64 + 6 * 24);
  EXPECT_EQ(flops("adapter.targets=[attention.query, moe.experts.gate]") -
                flops("adapter.targets=[attention.query]"),
            2 * 2 * of_one);
}

}  // namespace
}  // namespace sherd::engine
