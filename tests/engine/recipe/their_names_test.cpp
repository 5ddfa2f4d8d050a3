// Groups of parameters in the names of the folder that a model is from.
#include <gtest/gtest.h>

#include "engine/recipe/groups.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Names = std::vector<std::string>;

class TheirNames : public ::testing::Test {
 protected:
  TheirNames() {
    folder_.write("llama/config.json",
                  R"({"model_type": "llama", "hidden_act": "silu", "vocab_size": 56,
                      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                      "num_attention_heads": 4, "max_position_embeddings": 64})");
    folder_.write("gpt2/config.json",
                  R"({"model_type": "gpt2", "vocab_size": 56, "n_embd": 32, "n_layer": 2,
                      "n_head": 4, "n_positions": 64, "activation_function": "gelu_new"})");
  }
  std::string text(const std::string& model, const std::string& patterns) const {
    return "model: {from: " + folder_.file(model) +
           "}\ndata: {path: text.txt}\n"
           "training: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n"
           "optimizer: {groups: [{parameters: [" +
           patterns + "], lr_factor: 0.5}]}\n";
  }
  Names ours(const std::string& model, const std::string& patterns) const {
    return resolve(text(model, patterns)).values.optimizer.groups[0].parameters;
  }

  test::TempFolder folder_;
};

TEST_F(TheirNames, BecomeOurs) {
  EXPECT_EQ(ours("llama", "\"model.layers.*.mlp.down_proj.weight\""),
            (Names{"block.*.mlp.down.weight"}));
  EXPECT_EQ(ours("llama", "lm_head.weight, final_norm.*"), (Names{"final_norm.*", "head.weight"}));
  EXPECT_EQ(ours("llama", "\"model.layers.1.self_attn.*_proj.weight\""),
            (Names{"block.1.attention.qkv.weight", "block.1.attention.output.weight"}));
  EXPECT_EQ(ours("llama", "\"*.gate_proj.*\", \"*.up_proj.*\""), (Names{"block.*.mlp.up.weight"}));
  EXPECT_EQ(ours("gpt2", "\"transformer.h.*.attn.c_attn.*\""),
            (Names{"block.*.attention.qkv.weight", "block.*.attention.qkv.bias"}));
}

TEST_F(TheirNames, OfAPartOfAMatrixAreRefused) {
  EXPECT_NE(error_of(text("llama", "\"*q_proj*\""))
                .find("optimizer.groups: block.0.attention.qkv.weight is one matrix here; name "
                      "model.layers.0.self_attn.k_proj.weight and "
                      "model.layers.0.self_attn.v_proj.weight, too."),
            std::string::npos);
  EXPECT_NE(error_of(text("llama", "\"*c_attn*\"")).find("matches no parameter"),
            std::string::npos);
}

// The shape is Llama's, or nobody's.
TEST_F(TheirNames, OfAModelFromScratchAreThoseThatItsExportHas) {
  const auto of = [](const std::string& more) {
    return "model: {vocab_size: 56, hidden_size: 32, num_layers: 2, num_attention_heads: 4, norm: "
           "rmsnorm, activation: swiglu, positions: rope, bias: false" +
           more +
           "}\ndata: {path: text.txt}\n"
           "training: {seq_length: 16, global_batch_size: 8, max_steps: 100}\n"
           "optimizer: {groups: [{parameters: [\"model.layers.*.mlp.down_proj.weight\", "
           "\"head.*\"], lr_factor: 0.5}]}\n";
  };
  EXPECT_EQ(resolve(of(", tie_embeddings: false")).values.optimizer.groups[0].parameters,
            (Names{"head.*", "block.*.mlp.down.weight"}));
  EXPECT_NE(error_of(of(", tie_embeddings: false, logits_scale: 3, attention_softcap: 4"))
                .find("matches no parameter"),
            std::string::npos);
}

TEST_F(TheirNames, AreStoredAsOurs) {
  const ResolvedRecipe once = resolve(text("llama", "\"model.layers.*.mlp.down_proj.weight\""));
  EXPECT_NE(once.yaml().find("block.*.mlp.down.weight"), std::string::npos);
  EXPECT_EQ(resolve(once.yaml()).values.optimizer.groups[0].parameters,
            (Names{"block.*.mlp.down.weight"}));
}

}  // namespace
}  // namespace sherd::engine
