// What config.json of mixtures means where a key is missing, null or odd: as in transformers 5.23.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/huggingface/config.h"
#include "engine/huggingface/config_edits.h"
#include "tests/support/values/error_text.h"

namespace sherd::huggingface {
namespace {

using nlohmann::json;

json config_of(const std::string& type, const json& more = json::object()) {
  json config = {
      {"model_type", type},           {"vocab_size", 56},         {"hidden_size", 32},
      {"num_hidden_layers", 3},       {"num_attention_heads", 4}, {"intermediate_size", 44},
      {"max_position_embeddings", 64}};
  config.update(more);
  return config;
}

std::string value(const json& config, std::string_view key) {
  return value_of(parse_config(config.dump(), "config.json"), key);
}

std::string refusal(const json& config) {
  return test::error_text<DataError>([&] { parse_config(config.dump(), "config.json"); });
}

TEST(MixtureConfig, OfErnieHasItsClasssThetaWhereTheFileHasNone) {
  EXPECT_EQ(std::stod(value(config_of("ernie4_5_moe"), "model.rope_theta")), 500000.0);
}

// transformers adds coefficient x k if tokens are spread evenly, Sherd its coefficient per layer.
TEST(MixtureConfig, OfAModelThatTrainsWithABalanceLossHasItInOurUnit) {
  const auto loss = [](const std::string& type, const json& more) {
    return parse_config(config_of(type, more).dump(), "config.json").balance_loss;
  };
  const json mixtral = {{"num_local_experts", 8},
                        {"num_experts_per_tok", 2},
                        {"num_key_value_heads", 2},
                        {"router_aux_loss_coef", 0.03}};
  EXPECT_FALSE(loss("mixtral", mixtral));
  json trains = mixtral;
  trains["output_router_logits"] = true;
  ASSERT_TRUE(loss("mixtral", trains));
  EXPECT_EQ(loss("mixtral", trains)->key, "moe.balance_loss");
  EXPECT_DOUBLE_EQ(std::stod(loss("mixtral", trains)->value), 0.03 * 2 / 3);
  // Every second layer of three has experts: one.
  const json sparse = {{"num_experts", 8},
                       {"num_experts_per_tok", 4},
                       {"decoder_sparse_step", 2},
                       {"moe_intermediate_size", 16},
                       {"num_key_value_heads", 2},
                       {"router_aux_loss_coef", 0.01},
                       {"output_router_logits", true}};
  ASSERT_TRUE(loss("qwen3_moe", sparse));
  EXPECT_DOUBLE_EQ(std::stod(loss("qwen3_moe", sparse)->value), 0.01 * 4);
}

TEST(MixtureConfig, OfGptOssHasItsClasssYarnWhereTheFileHasNoTable) {
  const json config = config_of("gpt_oss", {{"rope_theta", 150000.0}});
  EXPECT_EQ(value(config, "model.rope_scaling"), "yarn");
  EXPECT_EQ(value(config, "model.rope_factor"), "32");
  EXPECT_EQ(value(config, "model.rope_truncate"), "false");
  json plain = config;
  plain["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 150000.0}};
  EXPECT_EQ(value(plain, "model.rope_scaling"), "");
}

TEST(MixtureConfig, OfLlama4HasItsClasssDefaults) {
  const json config = config_of("llama4_text", {{"num_hidden_layers", 5}, {"head_dim", 8}});
  EXPECT_EQ(value(config, "moe.num_experts"), "16");
  EXPECT_EQ(value(config, "moe.ffn_hidden_size"), "44");
  EXPECT_EQ(value(config, "moe.shared_ffn_hidden_size"), "44");
  // Its class computes no loss of balance, whatever the file says.
  const json trains =
      config_of("llama4_text", {{"output_router_logits", true}, {"router_aux_loss_coef", 0.001}});
  EXPECT_FALSE(parse_config(trains.dump(), "config.json").balance_loss);
  EXPECT_EQ(value(config, "model.ffn_hidden_size"), "16384");
  EXPECT_EQ(value(config, "model.rope_layers"), "\"11101\"");
  EXPECT_EQ(value(config, "model.qk_norm"), "rotated");
  EXPECT_EQ(std::stod(value(config, "model.query_growth")), 0.1);
  EXPECT_EQ(std::stod(value(config, "model.query_step")), 8192.0);
  EXPECT_EQ(value(config, "moe.layers"), "");
  json other = config;
  other["interleave_moe_layer_step"] = 2;
  other["use_qk_norm"] = false;
  other["attn_temperature_tuning"] = 4;
  other["no_rope_layers"] = {0, 1, 1, 1, 1, 0, 0};
  EXPECT_EQ(value(other, "moe.layers"), "\"01010\"");
  EXPECT_EQ(value(other, "model.qk_norm"), "");
  EXPECT_EQ(value(other, "model.rope_layers"), "\"01111\"");
  EXPECT_EQ(std::stod(value(other, "model.query_growth")), 0.1);
  other["moe_layers"] = {0, 4};
  other["attn_temperature_tuning"] = false;
  EXPECT_EQ(value(other, "moe.layers"), "\"10001\"");
  EXPECT_EQ(value(other, "model.query_growth"), "");
}

TEST(MixtureConfig, OfLlama4AttendsInChunksOnlyUpToOne) {
  const auto with = [](const char* key, const json& changed) {
    json config = config_of("llama4_text", {{"head_dim", 8}, {"attention_chunk_size", 48}});
    config[key] = changed;
    return config;
  };
  const auto most = [&](const char* key, const json& changed) {
    return parse_config(with(key, changed).dump(), "config.json").most_positions;
  };
  const auto refused = [&](const char* key, const json& changed) {
    return refusal(with(key, changed));
  };
  EXPECT_EQ(most("head_dim", 8), 48);
  EXPECT_EQ(value(with("head_dim", 8), "model.max_seq_length"), "48");
  const json full = {"full_attention", "full_attention", "full_attention"};
  const json one = {"full_attention", "chunked_attention", "full_attention"};
  const json windowed = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_FALSE(most("layer_types", full));
  EXPECT_FALSE(most("no_rope_layers", {0, 0, 0}));
  EXPECT_EQ(most("layer_types", one), 48);
  EXPECT_EQ(refused("attention_chunk_size", nullptr),
            "config.json: attention_chunk_size is null, but layers attend in chunks");
  EXPECT_EQ(
      refused("layer_types", windowed),
      "config.json: layer_types holds another type than chunked_attention and full_attention");
  EXPECT_EQ(refused("layer_types", json::array({"full_attention"})),
            "config.json: layer_types isn't a list of 3 layers");
  EXPECT_EQ(refused("no_rope_layers", {1, 0}),
            "config.json: no_rope_layers isn't a list of 3 or more layers");
  EXPECT_EQ(refused("moe_layers", 2), "config.json: moe_layers isn't a list");
}

TEST(MixtureConfig, OfPhimoeReadsTextsOfTheOriginalLengthOnly) {
  const json list = {1.0, 1.25, 1.5, 2.0};
  json scaling;
  scaling["type"] = "longrope";
  scaling["short_factor"] = list;
  scaling["long_factor"] = list;
  scaling["short_mscale"] = 1.25;
  scaling["long_mscale"] = 1.5;
  json config = config_of("phimoe", {{"num_key_value_heads", 2}, {"rope_theta", 10000.0}});
  config["original_max_position_embeddings"] = 48;
  config["rope_scaling"] = scaling;
  EXPECT_EQ(parse_config(config.dump(), "config.json").most_positions, 48);
  EXPECT_EQ(std::stod(value(config, "model.rope_attention_factor")), 1.25);
  EXPECT_EQ(value(config, "moe.score"), "sparsemixer");
  EXPECT_EQ(std::stod(value(config, "moe.jitter")), 0.01);
  json three = config;
  three["num_experts_per_tok"] = 3;
  EXPECT_NE(refusal(three).find("num_experts_per_tok is 3"), std::string::npos) << refusal(three);
  json without = config;
  without["rope_scaling"].erase("short_mscale");
  EXPECT_EQ(refusal(without),
            "config.json: rope_parameters isn't longrope with short_mscale and long_mscale");
  json linear = config;
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}, {"short_mscale", 1.0}};
  EXPECT_NE(refusal(linear).find("isn't longrope"), std::string::npos) << refusal(linear);
}

TEST(MixtureConfig, OfHunyuanRaisesThetaByAFixedAlpha) {
  const json scaling = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  const json config = config_of("hunyuan_v1_moe", {{"rope_scaling", scaling}, {"head_dim", 16}});
  EXPECT_NEAR(std::stod(value(config, "model.rope_theta")), 10000.0 * std::pow(1000.0, 16.0 / 14.0),
              1.0);
  EXPECT_EQ(value(config, "model.rope_scaling"), "");
}

TEST(MixtureConfig, OfDeepseekScalesScoresByYarnsMscaleOfAllDimensions) {
  const json yarn = {{"type", "yarn"},
                     {"factor", 40.0},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0},
                     {"beta_fast", 1.0},
                     {"beta_slow", 1.0},  // as Kimi K2 has them
                     {"original_max_position_embeddings", 16}};
  const json config = config_of("deepseek_v3", {{"rope_scaling", yarn}});
  const double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_NEAR(std::stod(value(config, "model.attention_scale")), m * m / std::sqrt(192.0), 1e-12);
  json dynamic = config;
  dynamic["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4.0}, {"mscale_all_dim", 1.0}};
  EXPECT_NE(refusal(dynamic).find("mscale_all_dim isn't 0 next to rope_type dynamic"),
            std::string::npos)
      << refusal(dynamic);
}

TEST(MixtureConfig, OfDeepseekV3WithNullsThatMeanFalseElsewhereIsRefused) {
  for (const char* key : {"norm_topk_prob", "n_group", "topk_group", "rope_interleave"}) {
    const std::string error = refusal(config_of("deepseek_v3", {{key, nullptr}}));
    EXPECT_NE(error.find(std::string(key) + " is null"), std::string::npos) << error;
  }
}

TEST(MixtureConfig, OfExportedWeightsHasNoPredictionLayers) {
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
    const json config = config_of("deepseek_v3", {{key, 1}});
    json expected = config;
    expected[key] = 0;
    EXPECT_EQ(json::parse(for_exported_weights(config.dump(), "config.json")), expected);
  }
}

TEST(MixtureConfig, OfExportedWeightsStaysAsItIsWithNothingToChange) {
  const std::string config = config_of("deepseek_v3", json::object()).dump(3);
  EXPECT_EQ(for_exported_weights(config, "config.json"), config);
}

TEST(MixtureConfig, OfKimiIsExportedAsTheTypeThatTransformersKnows) {
  const json config = config_of("kimi_k2", {{"auto_map", {{"AutoConfig", "a.B"}}}});
  const json written = json::parse(for_exported_weights(config.dump(), "config.json"));
  EXPECT_EQ(written["model_type"], "deepseek_v3");
  EXPECT_FALSE(written.contains("auto_map"));
}

}  // namespace
}  // namespace sherd::huggingface
