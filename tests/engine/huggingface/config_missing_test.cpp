// config.json: keys that are missing or null, and values of another kind.
#include <gtest/gtest.h>

#include "tests/engine/huggingface/config_case.h"

namespace sherd::huggingface {
namespace {

using config_case::refusal;
using config_case::smollm2;
using config_case::values_of;
using config_case::with;
using nlohmann::json;

// Expected: the defaults of these classes in transformers 5.23 and 4.57.6.
TEST(Config, AKeyThatIsMissingIsTheClassesAndNullIsNone) {
  for (const char* family : {"mistral", "gemma2", "cohere2", "olmo3"}) {
    SCOPED_TRACE(family);
    json config = with(smollm2(), "model_type", family);
    config.erase("mlp_bias");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["layer_norm_eps"] = 1e-5;
    EXPECT_EQ(values_of(config)["model.window"], "4096");
    EXPECT_EQ(values_of(with(config, "sliding_window", nullptr)).count("model.window"), 0u);
    EXPECT_EQ(values_of(with(config, "sliding_window", 64))["model.window"], "64");
  }
  json gemma = with(smollm2(), "model_type", "gemma2");
  gemma["hidden_activation"] = "gelu_pytorch_tanh";
  EXPECT_EQ(values_of(gemma)["model.attention_softcap"], "50.0");
  EXPECT_EQ(values_of(gemma)["model.logits_softcap"], "30.0");
  EXPECT_EQ(
      values_of(with(gemma, "attn_logit_softcapping", nullptr)).count("model.attention_softcap"),
      0u);
  EXPECT_EQ(values_of(with(gemma, "final_logit_softcapping", 20.0))["model.logits_softcap"],
            "20.0");
}

// Of Phi-3 the class's 4096 stands even before what the table of frequencies says (both versions).
TEST(Config, LongropesLengthIsTheFilesOwnOrTheClasses) {
  json config = with(smollm2(), "model_type", "phi3");
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"original_max_position_embeddings", 2048},
                            {"short_factor", std::vector<double>(32, 1.0)},
                            {"long_factor", std::vector<double>(32, 2.0)}};
  EXPECT_EQ(values_of(config)["model.rope_original_length"], "4096");
  EXPECT_EQ(values_of(config)["model.rope_factor"], "2");
  config["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(values_of(config)["model.rope_original_length"], "1024");
}

TEST(Config, WhatVersionsOfAClassDisagreeOnMustBeSaid) {
  for (const char* family : {"cohere", "cohere2", "olmo3"}) {
    json config = with(smollm2(), "model_type", family);
    config["layer_norm_eps"] = 1e-5;
    config.erase("rope_theta");
    EXPECT_EQ(refusal(config), "config.json: rope_theta is missing") << family;
  }
}

TEST(Config, ATextIsNoNumberAndNoTruth) {
  EXPECT_EQ(refusal(with(smollm2(), "hidden_size", "32")),
            "config.json: hidden_size is a text; expected a number, true or false");
  EXPECT_EQ(refusal(with(smollm2(), "tie_word_embeddings", "false")),
            "config.json: tie_word_embeddings is a text; expected a number, true or false");
  EXPECT_EQ(refusal(with(smollm2(), "num_key_value_heads", "3")),
            "config.json: num_key_value_heads is a text; expected a number, true or false");
}

TEST(Config, ListsOfLayersHaveOneEntryForEach) {
  json config = with(smollm2(), "model_type", "smollm3");
  config["no_rope_layers"] = {0, 1};
  EXPECT_EQ(refusal(config),
            "config.json: no_rope_layers has 2 layers, another number than num_hidden_layers");
}

}  // namespace
}  // namespace sherd::huggingface
