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

// Expected: the defaults of these classes in transformers 5.23 and 4.57.6. Null is no window; classes with windows in some
// layers can't be without.
TEST(Config, AKeyThatIsMissingIsTheClassesAndNullIsNone) {
  for (const char* family : {"mistral", "gemma2", "cohere2", "olmo3"}) {
    SCOPED_TRACE(family);
    json config = with(smollm2(), "model_type", family);
    config.erase("mlp_bias");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["layer_norm_eps"] = 1e-5;
    config["rope_theta"] = 500000.0;  // with another one versions read olmo3 differently
    EXPECT_EQ(values_of(config)["model.window"], "4096");
    EXPECT_EQ(values_of(with(config, "sliding_window", 64))["model.window"], "64");
    const json none = with(config, "sliding_window", nullptr);
    if (std::string(family) == "mistral") {
      EXPECT_EQ(values_of(none).count("model.window"), 0u);
    } else {
      EXPECT_EQ(refusal(none),
                "config.json: sliding_window is null or missing, but layers are windowed");
    }
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

// For Phi-3, the class's 4096 precedes even the table of frequencies (both versions).
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
  for (const char* family : {"cohere", "olmo3"}) {
    json config = with(smollm2(), "model_type", family);
    config["layer_norm_eps"] = 1e-5;
    config.erase("rope_theta");
    EXPECT_EQ(refusal(config), "config.json: rope_theta is missing") << family;
  }
}

// As transformers 5.23 reads them; 4.57 has no rope_parameters.
TEST(Config, RopeScalingCountsBeforeRopeParametersWhichAreListedWhereTheyDiffer) {
  json config = with(smollm2(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e4}});
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  const ModelConfig read = parse_config(config.dump(), "config.json");
  EXPECT_EQ(values_of(config)["model.rope_scaling"], "linear");
  EXPECT_EQ(values_of(config)["model.rope_theta"], "100000");
  EXPECT_EQ(read.unused, (std::vector<std::string>{"rope_parameters", "is_llama_config"}));
  config["rope_scaling"] = json::object();
  EXPECT_EQ(values_of(config)["model.rope_theta"], "50000");
}

TEST(Config, DynamicScalingLimitsTheContextToTheLengthThatTheModelKnows) {
  const json config = with(smollm2(), "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}});
  EXPECT_EQ(values_of(config), values_of(smollm2()));
  EXPECT_EQ(parse_config(config.dump(), "config.json").most_positions, 8192);
}

TEST(Config, KeysThatTheClassIgnoresAreListed) {
  json config = with(smollm2(), "partial_rotary_factor", 0.5);
  config["rope_scaling"] = {{"rope_type", "default"}, {"factor", 2.0}};
  const ModelConfig read = parse_config(config.dump(), "config.json");
  EXPECT_EQ(values_of(config), values_of(smollm2()));
  EXPECT_EQ(read.unused, (std::vector<std::string>{"rope_scaling.factor", "is_llama_config",
                                                   "partial_rotary_factor"}));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(
      refusal(config),
      "config.json: partial_rotary_factor is 0.5, but models of type llama rotate whole heads");
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
            "config.json: no_rope_layers has 2 layers, but num_hidden_layers differs");
}

TEST(Config, LayersThatRotateAreZerosAndOnesOrTruths) {
  const auto of = [](const json& layers) {
    json config = with(smollm2(), "model_type", "smollm3");
    config["no_rope_layers"] = layers;
    return refusal(config);
  };
  const auto layers = smollm2()["num_hidden_layers"].get<std::size_t>();
  EXPECT_EQ(of(std::vector<bool>(layers, false)), of(std::vector<int>(layers, 0)));
  EXPECT_EQ(of(std::vector<std::string>(layers, "no")),
            "config.json: no_rope_layers has entries that are neither 0 nor 1");
}

}  // namespace
}  // namespace sherd::huggingface
