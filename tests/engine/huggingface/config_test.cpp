// config.json: both spellings, what is refused, what is listed.
#include "engine/huggingface/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "engine/huggingface/config_writer.h"
#include "tests/engine/huggingface/config_case.h"
#include "tests/support/random/mutated_text.h"
#include "tests/support/values/error_text.h"
#include "tests/where.h"

namespace sherd::huggingface {
namespace {

using config_case::refusal;
using config_case::smollm2;
using config_case::values_of;
using config_case::with;
using nlohmann::json;

TEST(Config, SaysWhatALlamaIs) {
  const ModelConfig config = parse_config(smollm2().dump(), "config.json");
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.unused, std::vector<std::string>{"is_llama_config"});
  EXPECT_EQ(values_of(smollm2()),
            (std::map<std::string, std::string>{{"model.num_layers", "30"},
                                                {"model.hidden_size", "576"},
                                                {"model.num_attention_heads", "9"},
                                                {"model.num_kv_heads", "3"},
                                                {"model.ffn_hidden_size", "1536"},
                                                {"model.vocab_size", "49152"},
                                                {"model.max_seq_length", "8192"},
                                                {"model.norm", "rmsnorm"},
                                                {"model.norm_eps", "1e-05"},
                                                {"model.activation", "swiglu"},
                                                {"model.positions", "rope"},
                                                {"model.rope_theta", "100000"},
                                                {"model.tie_embeddings", "true"}}));
}

TEST(Config, ReadsTheSpellingOfTransformers5) {
  json config = smollm2();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config.erase("torch_dtype");
  config["dtype"] = "float32";
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 100000.0}};
  EXPECT_EQ(values_of(config), values_of(smollm2()));
  EXPECT_EQ(parse_config(config.dump(), "config.json").dtype, DType::kF32);
  // And what we write for both says the same to either.
  const json both = json::parse(updated_config(config.dump(), "config.json", DType::kF16));
  EXPECT_EQ(both["rope_theta"], 100000.0);
  EXPECT_EQ(both["rope_scaling"], nullptr);
  EXPECT_EQ(both["dtype"], "float16");
  EXPECT_EQ(both["torch_dtype"], "float16");
  EXPECT_EQ(values_of(both), values_of(smollm2()));
  const json from_old = json::parse(updated_config(smollm2().dump(), "config.json", DType::kBF16));
  EXPECT_EQ(from_old["rope_parameters"], (json{{"rope_type", "default"}, {"rope_theta", 100000}}));
  EXPECT_EQ(values_of(from_old), values_of(smollm2()));
}

TEST(Config, HasBothSpellingsOfAScaling) {
  const json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}};
  const json old = with(smollm2(), "rope_scaling", scaling);
  const auto values = values_of(old);
  EXPECT_EQ(values.at("model.rope_scaling"), "llama3");
  EXPECT_EQ(values.at("model.rope_factor"), "32");
  EXPECT_EQ(values.at("model.rope_original_length"), "8192");
  json parameters = scaling;
  parameters["rope_theta"] = 100000;
  json config = with(smollm2(), "rope_parameters", parameters);
  config.erase("rope_theta");
  config.erase("rope_scaling");
  EXPECT_EQ(values_of(config), values);
  const json written = json::parse(updated_config(config.dump(), "config.json", DType::kF32));
  EXPECT_EQ(written["rope_scaling"], scaling);
}

TEST(Config, IsSpelledAsTransformers4WantsItOfEveryFamily) {
  const auto written = [](const json& config) {
    return json::parse(updated_config(config.dump(), "config.json", DType::kF32));
  };
  json phi = with(smollm2(), "model_type", "phi3");
  phi["rope_parameters"] = {
      {"rope_type", "longrope"},       {"rope_theta", 10000.0},
      {"partial_rotary_factor", 0.75}, {"short_factor", {1.0}},
      {"long_factor", {2.0}},          {"original_max_position_embeddings", 4096}};
  const json old_phi = written(phi);
  EXPECT_EQ(old_phi["rope_scaling"],
            (json{{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {2.0}}}));
  EXPECT_EQ(old_phi["original_max_position_embeddings"], 4096);
  EXPECT_EQ(old_phi["partial_rotary_factor"], 0.75);
  EXPECT_EQ(values_of(old_phi), values_of(phi));

  json neox = with(smollm2(), "model_type", "gpt_neox");
  neox.erase("rope_theta");
  neox.erase("attention_bias");
  neox["hidden_act"] = "gelu";
  neox["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 20000.0}, {"partial_rotary_factor", 0.5}};
  json old_neox = written(neox);
  EXPECT_EQ(old_neox["rotary_emb_base"], 20000.0);
  EXPECT_EQ(old_neox["rotary_pct"], 0.5);
  EXPECT_FALSE(old_neox.contains("rope_theta"));
  old_neox.erase("rope_parameters");
  EXPECT_EQ(values_of(old_neox), values_of(neox));
  EXPECT_EQ(written(old_neox)["rope_parameters"], neox["rope_parameters"]);

  // transformers 5 requires both tables or none.
  json olmo = with(smollm2(), "model_type", "olmo3");
  olmo["sliding_window"] = 8;
  olmo["rope_theta"] = 500000.0;
  EXPECT_FALSE(written(olmo).contains("rope_parameters"));
  EXPECT_EQ(values_of(olmo).at("model.window_layers"), "\"1110\"");
}

TEST(Config, RefusesWhatChangesTheModelAndIsntSupported) {
  const json base = smollm2();
  EXPECT_EQ(refusal(with(base, "model_type", "dbrx")).find("config.json: model_type is \"dbrx\""),
            0u);
  EXPECT_NE(refusal(with(base, "quantization_config", {{"bits", 4}})).find("is quantized"),
            std::string::npos);
  EXPECT_EQ(refusal(with(base, "hidden_act", "gelu")),
            "config.json: hidden_act is gelu, which isn't supported for this family");
  EXPECT_EQ(refusal(with(base, "is_encoder_decoder", true)),
            "config.json: is_encoder_decoder is true; only false is supported");
  EXPECT_NE(refusal(with(base, "rope_scaling", {{"type", "ntk"}, {"factor", 2.0}}))
                .find("has rope_type ntk"),
            std::string::npos);
  EXPECT_NE(
      refusal(with(base, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"new_knob", 2.0}}))
          .find("has the key new_knob"),
      std::string::npos);
  EXPECT_NE(
      refusal(with(base, "rope_parameters", {{"rope_type", 5}})).find("rope_type that is no text"),
      std::string::npos);
  EXPECT_NE(refusal(with(base, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", "x"}}))
                .find("rope_theta that is no number"),
            std::string::npos);
  EXPECT_EQ(
      refusal(with(base, "model_type", "phi")),
      "config.json: model_type is \"phi\", which has a head with a bias; that isn't supported");
  EXPECT_EQ(refusal(with(base, "per_layer_config", {{"1", {{"sliding_window", 3}}}})),
            "config.json: per_layer_config isn't supported");
  json missing = base;
  missing.erase("hidden_size");
  EXPECT_EQ(refusal(missing), "config.json: hidden_size is missing");
  missing = base;
  missing.erase("model_type");
  EXPECT_NE(refusal(missing).find("has no model_type"), std::string::npos);
}

TEST(Config, OfAModelOfSeveralPartsTheTextPartCounts) {
  json text = smollm2();
  text.erase("torch_dtype");
  text.erase("tie_word_embeddings");
  text["model_type"] = "mistral";
  const json whole = {{"model_type", "mistral3"},    {"text_config", text},
                      {"torch_dtype", "bfloat16"},   {"tie_word_embeddings", true},
                      {"vision_config", {{"a", 1}}}, {"spatial_merge_size", 2}};
  const ModelConfig config = parse_config(whole.dump(), "config.json");
  EXPECT_EQ(config.whole, "mistral3");
  EXPECT_EQ(config.family->model_type, "mistral");
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.unused,
            (std::vector<std::string>{"attention_bias", "is_llama_config", "mlp_bias",
                                      "rope_interleaved", "spatial_merge_size", "vision_config"}));
  EXPECT_EQ(values_of(whole).at("model.tie_embeddings"), "true");
  json quantized = whole;
  quantized["text_config"]["quantization_config"] = {{"bits", 4}};
  EXPECT_NE(refusal(quantized).find("is quantized"), std::string::npos);
  json torn = whole;
  torn["text_config"]["tie_word_embeddings"] = false;
  EXPECT_EQ(refusal(torn),
            "config.json: tie_word_embeddings is true and in text_config false; which one applies "
            "is unknown");
  torn.erase("text_config");
  EXPECT_EQ(refusal(torn),
            "config.json: model_type is \"mistral3\", a model of several parts, but there is no "
            "text_config");
  torn["text_config"] = {{"model_type", "mamba"}};
  EXPECT_EQ(refusal(torn).find("config.json: model_type is \"mamba\""), 0u);
}

TEST(Config, WhatATextPartLeavesOutIsWhatItsClassHas) {
  // Gemma 3 4B's, where the class's own values are left out.
  const json whole = {{"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}},
                      {"mm_tokens_per_image", 256}};
  const auto values = values_of(whole);
  EXPECT_EQ(values.at("model.num_attention_heads"), "8");
  EXPECT_EQ(values.at("model.num_kv_heads"), "4");
  EXPECT_EQ(values.at("model.head_width"), "256");
  EXPECT_EQ(values.at("model.vocab_size"), "262208");
  EXPECT_EQ(values.at("model.max_seq_length"), "131072");
  EXPECT_EQ(values.at("model.window_layers"), "\"111110\"");
  EXPECT_EQ(values.at("model.rope_factor"), "8");
}

TEST(Config, OfQueriesThatGrowWithTheirPositionTheFirstPositionsAreTaken) {
  json config = smollm2();
  config["model_type"] = "ministral3";
  config["max_position_embeddings"] = 262144;
  config.erase("rope_theta");
  config.erase("mlp_bias");
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1000000.0},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"max_position_embeddings", 262144},
                               {"beta_fast", 32.0},
                               {"beta_slow", 1.0},
                               {"mscale", 1.0},
                               {"mscale_all_dim", 1.0},
                               {"llama_4_scaling_beta", 0.1}};
  EXPECT_EQ(parse_config(config.dump(), "config.json").most_positions, 16384);
  EXPECT_EQ(values_of(config).at("model.max_seq_length"), "16384");
  EXPECT_EQ(values_of(config).at("model.rope_attention_factor"), "1");
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.0;
  EXPECT_FALSE(parse_config(config.dump(), "config.json").most_positions);
  config["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_NE(refusal(config).find("rope_parameters lacks llama_4_scaling_beta"), std::string::npos);
  // Elsewhere the key isn't known.
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  config["model_type"] = "mistral";
  EXPECT_NE(refusal(config).find("has the key llama_4_scaling_beta"), std::string::npos);
}

TEST(Config, ReadsGpt2AndRefusesItsVariants) {
  const json config = {{"model_type", "gpt2"}, {"n_layer", 12},
                       {"n_embd", 768},        {"n_head", 12},
                       {"vocab_size", 50257},  {"n_positions", 1024},
                       {"resid_pdrop", 0.1},   {"activation_function", "gelu_new"},
                       {"n_ctx", 1024},        {"layer_norm_epsilon", 1e-05}};
  const auto values = values_of(config);
  EXPECT_EQ(values.at("model.ffn_hidden_size"), "3072");
  EXPECT_EQ(values.at("model.positions"), "learned");
  EXPECT_EQ(values.at("model.bias"), "true");
  EXPECT_EQ(values.at("model.tie_embeddings"), "true");
  EXPECT_EQ(values.at("model.activation"), "gelu");
  EXPECT_EQ(parse_config(config.dump(), "config.json").unused,
            std::vector<std::string>{"resid_pdrop"});
  for (const auto& [key, value] : {std::pair("scale_attn_by_inverse_layer_idx", json(true)),
                                   std::pair("scale_attn_weights", json(false)),
                                   std::pair("add_cross_attention", json(true))}) {
    EXPECT_EQ(refusal(with(config, key, value)).find(std::string("config.json: ") + key), 0u);
  }
}

TEST(Config, NormsOfHeadsAreASettingOfTwoFamilies) {
  for (const auto& [family, theirs] :
       {std::pair("stablelm", "qk_layernorm"), std::pair("cohere", "use_qk_norm")}) {
    const json config = with(smollm2(), "model_type", family);
    EXPECT_EQ(values_of(config).at("model.qk_norm"), "none");
    EXPECT_EQ(values_of(with(config, theirs, false)).at("model.qk_norm"), "none");
    EXPECT_EQ(values_of(with(config, theirs, true)).at("model.qk_norm"), "per_head");
    EXPECT_EQ(refusal(with(config, theirs, 2)),
              fmt::format("config.json: {} is 2, which isn't supported for this family", theirs));
  }
  const json config = with(smollm2(), "model_type", "cohere2");  // whose class has no such norms
  EXPECT_EQ(values_of(with(config, "use_qk_norm", true)), values_of(config));
}

// Families are data: what isn't a table of theirs asks for none by its name.
TEST(Config, NoFamilyIsNamedOutsideOfTheTables) {
  namespace fs = std::filesystem;
  const fs::path root = SHERD_SOURCE_DIR;
  int files = 0;
  for (const char* layer : {"core", "kernels", "sharding", "optim", "checkpoint", "engine"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / layer)) {
      const std::string path = fs::relative(entry.path(), root).string();
      if (!entry.is_regular_file() || path.starts_with("engine/huggingface/families/")) continue;
      std::ifstream stream(entry.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      ++files;
      for (const Family* family : all_families()) {
        const std::string name = "\"" + std::string(family->model_type) + "\"";
        EXPECT_EQ(text.find(name), std::string::npos) << path << ": " << name;
      }
    }
  }
  EXPECT_GT(files, 300);
}

TEST(Config, NumbersOfLayersMakeNoTextsOfTheirLength) {
  json qwen = with(smollm2(), "model_type", "qwen2");
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 8;
  qwen["max_window_layers"] = 28;
  EXPECT_EQ(values_of(qwen).at("model.window_layers"), "\"" + std::string(28, '0') + "11\"");
  EXPECT_EQ(refusal(with(qwen, "num_hidden_layers", 1e18)),
            "config.json: num_hidden_layers isn't a whole number from 0 to 10000");
  EXPECT_EQ(refusal(with(qwen, "max_window_layers", -1)),
            "config.json: max_window_layers isn't a whole number from 0 to 10000");
  EXPECT_EQ(refusal(with(qwen, "layer_types", {"full_attention", "sliding_attention"})),
            "config.json: layer_types has 2 layers, but num_hidden_layers differs");
  json smollm3 = with(smollm2(), "model_type", "smollm3");
  smollm3["no_rope_layer_interval"] = 1;
  EXPECT_EQ(values_of(smollm3).at("model.rope_layers"), "\"0\"");
  EXPECT_EQ(refusal(with(smollm3, "no_rope_layer_interval", 1e9)),
            "config.json: no_rope_layer_interval isn't a whole number from 1 to 10000");
}

/// Files are hostile: whatever is in them is a model or one line.
void survive_mutations(int count) {
  std::ifstream file(SHERD_SOURCE_DIR "/tests/engine/huggingface/folders.json");
  std::vector<std::string> texts;
  for (const json& one : json::parse(file)) texts.push_back(one["config"]);
  ASSERT_GE(texts.size(), 20u);
  std::mt19937 draw(11);
  int num_good = 0;
  for (int i = 0; i < count; ++i) {
    const std::string& text = texts[static_cast<std::size_t>(i) % texts.size()];
    ASSERT_LT(text.size(), 16384u);
    const std::string config = test::mutated_text(text, 0, draw);
    try {
      parse_config(config, "config.json");
      updated_config(config, "config.json", DType::kBF16);
      ++num_good;
    } catch (const DataError& error) {
      const std::string line = error.what();
      ASSERT_TRUE(line.starts_with("config.json: ")) << line;
      ASSERT_EQ(line.find('\n'), std::string::npos) << line;
    }
  }
  EXPECT_GT(num_good, count / 100);
  EXPECT_LT(num_good, count / 2);
}

TEST(Config, MutatedFilesAreModelsOrErrors) {
  survive_mutations(2000);
}
TEST(ConfigSlow, AHundredThousandMutatedFilesAreModelsOrErrors) {
  survive_mutations(100'000);
}

TEST(Config, AMadeOneReadsBackAsTheSameModel) {
  std::map<std::string, std::string> values = values_of(smollm2());
  const std::string text = config_of(*find_family("llama"), values, DType::kBF16);
  EXPECT_EQ(values_of(json::parse(text)), values);
}

}  // namespace
}  // namespace sherd::huggingface
