// The block `adapter`: which names mean which matrices, and what is refused.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sherd::engine
