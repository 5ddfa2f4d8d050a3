// The block `adapter`: which names mean which matrices, and what is refused.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/train/layout/training_options.h"
#include "engine/train/model_shape.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Names = std::vector<std::string>;

std::vector<std::string> lora(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"adapter.type=lora", "checkpoint.init_from=somewhere"});
  return more;
}
Names targets_of(const std::string& text, const std::vector<std::string>& sets) {
  return resolve(text, lora(sets)).values.adapter.targets;
}

TEST(AdapterKeys, AllLinearIsEveryMatrixOfABlockInItsParts) {
  EXPECT_EQ(targets_of(kTinyRecipe, {}),
            (Names{"attention.query", "attention.key", "attention.value", "attention.output",
                   "mlp.gate", "mlp.up", "mlp.down"}));
  EXPECT_EQ(targets_of(kTinyRecipe, {"model.activation=gelu"}),
            (Names{"attention.query", "attention.key", "attention.value", "attention.output",
                   "mlp.up", "mlp.down"}));
}

TEST(AdapterKeys, TheScaleIsAlphaOverTheRankOrItsRoot) {
  const auto scale = [](const std::vector<std::string>& sets) {
    return model_shape(resolve(kTinyRecipe, lora(sets)).values).adapter.scale;
  };
  EXPECT_EQ(scale({"adapter.rank=16"}), 1.0);
  EXPECT_EQ(scale({"adapter.rank=16", "adapter.alpha=8"}), 0.5);
  EXPECT_EQ(scale({"adapter.rank=16", "adapter.alpha=8", "adapter.rslora=true"}), 2.0);
}

// A frozen matrix has no weight gradient, a third of its work.
TEST(AdapterKeys, FrozenMatricesCostTwoThirdsAndAdaptersTheirOwn) {
  const auto flops = [](const std::vector<std::string>& sets) {
    return flops_per_token(model_shape(resolve(kTinyRecipe, sets).values));
  };
  // 2 blocks of width 64: query, key, value, output; gate, up, down of 192; a head of 256 rows.
  const double matrices = 2.0 * (4 * 64 * 64 + 3 * 64 * 192) + 64 * 256;
  const double attention = 12.0 * 2 * (16 / 2) * 64;
  EXPECT_EQ(flops({}), 6.0 * matrices + attention);
  const double adapter = 2.0 * 4 * (8 * 64 + 6 * 192);  // rank 4, one target
  EXPECT_EQ(flops(lora({"adapter.rank=4", "adapter.targets=[mlp.gate]"})),
            4.0 * matrices + attention + adapter);
  EXPECT_EQ(flops(lora({"adapter.rank=4", "adapter.targets=[mlp.gate]",
                        "adapter.modules_to_save=[head]"})),
            4.0 * matrices + 2.0 * 64 * 256 + attention + adapter);
}

TEST(AdapterKeys, AResolvedRecipeResolvesToItself) {
  const ResolvedRecipe once = resolve(kTinyRecipe, lora({"adapter.modules_to_save=[head, norm2]"}));
  EXPECT_EQ(resolve(once.yaml()).values.adapter.targets, once.values.adapter.targets);
  EXPECT_EQ(resolve(once.yaml()).values.adapter.modules_to_save, (Names{"head", "norm2"}));
}

// Families divide matrices in their own ways.
TEST(AdapterKeys, NamesOfTheModelsFamilyAreFoundByTheirEnds) {
  const test::TempFolder folder;
  const std::string sizes =
      R"("vocab_size": 56, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,)";
  folder.write("llama/config.json",
               "{" + sizes + R"("model_type": "llama", "hidden_act": "silu"})");
  folder.write("phi3/config.json", "{" + sizes + R"("model_type": "phi3", "hidden_act": "silu"})");
  folder.write("gpt2/config.json", R"({"model_type": "gpt2", "vocab_size": 56, "n_embd": 32,
      "n_layer": 2, "n_head": 4, "n_positions": 64, "activation_function": "gelu_new"})");
  const auto targets = [&](const std::string& model, const std::string& names) {
    const std::string text = "model: {from: " + folder.file(model) +
                             "}\ndata: {path: text.txt}\n"
                             "training: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n";
    const Recipe recipe = resolve(text, {"adapter.type=lora", "adapter.targets=" + names}).values;
    EXPECT_EQ(recipe.checkpoint.init_from, folder.file(model));
    return recipe.adapter.targets;
  };
  EXPECT_EQ(targets("llama", "[q_proj, v_proj]"), (Names{"attention.query", "attention.value"}));
  EXPECT_EQ(targets("llama", "[up_proj, attention.qkv]"), (Names{"mlp.up", "attention.qkv"}));
  EXPECT_EQ(targets("phi3", "[all-linear]"),
            (Names{"attention.qkv", "attention.output", "mlp.gate_up", "mlp.down"}));
  EXPECT_EQ(targets("gpt2", "[c_proj]"), (Names{"attention.output", "mlp.down"}));
  EXPECT_EQ(targets("gpt2", "[mlp.c_proj]"), (Names{"mlp.down"}));
}

TEST(AdapterKeys, RefuseInOneLine) {
  const auto error = [](const std::vector<std::string>& sets) {
    return error_of(kTinyRecipe, lora(sets));
  };
  EXPECT_EQ(error({"adapter.targets=[q_proj]"}),
            "--set adapter.targets=[q_proj]: adapter.targets: \"q_proj\" names no matrix of this "
            "model; it has attention.qkv, attention.query, attention.key, attention.value, "
            "attention.output, mlp.gate_up, mlp.gate, mlp.up and mlp.down.");
  EXPECT_EQ(
      error({"adapter.rank=65", "adapter.targets=[attention.key]"}),
      "--set adapter.rank=65: adapter.rank is 65, above the width of attention.key (64 x 64). "
      "Use 64 or less.");
  EXPECT_EQ(error({"adapter.targets=[attention.qkv, attention.key]"}),
            "--set adapter.targets=[attention.qkv, attention.key]: adapter.targets: attention.qkv "
            "and attention.key are adapters of the same rows; keep one.");
  EXPECT_EQ(error({"adapter.targets=[mlp.gate]", "adapter.modules_to_save=[mlp.up]"}),
            "--set adapter.modules_to_save=[mlp.up]: adapter.modules_to_save has mlp.up, which is "
            "trained whole, and adapter.targets an adapter for mlp.gate; keep one.");
  EXPECT_EQ(error({"adapter.targets=[]"}),
            "--set adapter.targets=[]: adapter.targets is empty; name a matrix, or write "
            "[all-linear].");
  EXPECT_EQ(
      error({"adapter.modules_to_save=[lm_head]"}),
      "--set adapter.modules_to_save=[lm_head]: adapter.modules_to_save: \"lm_head\" names no "
      "whole module of this model; it has embedding.token, norm1, attention.qkv, "
      "attention.output, norm2, mlp.up, mlp.down, final_norm and head.");
  EXPECT_EQ(error_of(kTinyRecipe, {"adapter.type=lora"}),
            "--set adapter.type=lora: adapter.type is lora, but there is no model that it is for. "
            "Set model.from to a Hugging Face folder, or checkpoint.init_from to a checkpoint.");
}

TEST(AdapterKeys, WhatThereIsntIsSaidInASentence) {
  EXPECT_NE(error_of_set("adapter.type=dora")
                .find("types are none and lora; QLoRA is lora with adapter.base_dtype: nf4"),
            std::string::npos)
      << error_of_set("adapter.type=dora");
  EXPECT_EQ(error_of_set("adapter.base_dtype=nf4"),
            "--set adapter.base_dtype=nf4: adapter.base_dtype is nf4, but adapter.type is none, so "
            "all weights are trained. Set adapter.type: lora, or leave it out.");
  EXPECT_NE(error_of_set("adapter.load_in_4bit=true")
                .find("did you mean \"adapter.base_dtype\"? QLoRA is adapter.type lora with "
                      "base_dtype nf4."),
            std::string::npos)
      << error_of_set("adapter.load_in_4bit=true");
  EXPECT_NE(error_of_set("training.neftune_noise_alpha=5").find("NEFTune's noise isn't supported."),
            std::string::npos);
  EXPECT_NE(error_of_set("training.dpo=true").find("preference.loss"), std::string::npos);
  EXPECT_NE(error_of_set("model.lora_rank=8").find("adapter.rank"), std::string::npos);
}

// Of mixtures.
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
