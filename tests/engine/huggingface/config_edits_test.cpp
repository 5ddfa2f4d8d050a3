// What a run changes in the files of the folder that it began with.

#include "engine/huggingface/config_edits.h"

#include <gtest/gtest.h>

#include "engine/huggingface/config.h"
#include "engine/huggingface/config_writer.h"
#include "tests/engine/huggingface/config_case.h"

namespace sherd::huggingface {
namespace {

using config_case::smollm2;
using config_case::with;
using nlohmann::json;

json longer(const json& config, std::int64_t positions) {
  return json::parse(with_positions(config.dump(), "config.json", positions));
}

TEST(ConfigEdits, ALongerContextIsWrittenAndAShorterOneIsnt) {
  EXPECT_EQ(longer(smollm2(), 16384)["max_position_embeddings"], 16384);
  EXPECT_EQ(longer(smollm2(), 1024), smollm2());
}

// transformers takes max_position_embeddings for a missing original length: of yarn and llama3, not of linear.
TEST(ConfigEdits, RotaryPositionsStayAsTheyAreWhenTheContextGrows) {
  for (const char* type : {"yarn", "llama3"}) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const json config = with(smollm2(), key, {{"rope_type", type}, {"factor", 2.0}});
      const json changed = longer(config, 16384);
      EXPECT_EQ(changed["max_position_embeddings"], 16384) << type;
      EXPECT_EQ(changed[key]["original_max_position_embeddings"], 8192) << type;
    }
  }
  const json linear = with(smollm2(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(longer(linear, 16384)["rope_scaling"], linear["rope_scaling"]);
  // Its factor on cosines and sines is a function of both lengths.
  const json longrope = with(smollm2(), "rope_scaling", {{"type", "longrope"}});
  EXPECT_EQ(longer(longrope, 16384), longrope);
}

TEST(ConfigEdits, ATokenizerThatCutsAtTheModelsLengthCutsAtTheNewOne) {
  const auto changed = [](std::int64_t longest) {
    const json config = {{"model_max_length", longest}};
    return json::parse(tokenizer_with_positions(config.dump(), smollm2().dump(), 16384));
  };
  EXPECT_EQ(changed(8192)["model_max_length"], 16384);
  EXPECT_EQ(changed(512)["model_max_length"], 512);
  EXPECT_EQ(changed(1'000'000'000)["model_max_length"], 1'000'000'000);
}

TEST(ConfigEdits, GenerationEndsWhereTheRunsTextsEnd) {
  const std::string config = R"({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null})";
  EXPECT_EQ(json::parse(generation_config("", config, {{2}, {}})),
            json::parse(R"({"bos_token_id": 1, "eos_token_id": 2})"));
  EXPECT_EQ(json::parse(generation_config("", config, {{7, 2}, {}})),
            json::parse(R"({"bos_token_id": 1, "eos_token_id": [7, 2]})"));
  // The folder's other settings are kept.
  EXPECT_EQ(json::parse(generation_config(R"({"temperature": 0.6, "eos_token_id": [2]})", config,
                                          {{7, 2}, {}})),
            json::parse(R"({"temperature": 0.6, "eos_token_id": [7, 2]})"));
  // Nothing is known, so nothing is written.
  EXPECT_EQ(json::parse(generation_config(R"({"eos_token_id": 5})", config, {{}, {}})),
            json::parse(R"({"eos_token_id": 5})"));
}

TEST(ConfigEdits, ConfigJsonAndTheTokenizerNameTheEndToo) {
  const json config = json::parse(with_end_tokens(smollm2().dump(), "config.json", {{9, 2}, {}}));
  EXPECT_EQ(config["eos_token_id"], json({9, 2}));
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(
      json::parse(with_eos_token(R"({"eos_token": {"content": "</s>"}, "a": 1})", "<|im_end|>")),
      json::parse(R"({"eos_token": "<|im_end|>", "a": 1})"));
  EXPECT_EQ(json::parse(with_eos_token("", "<|im_end|>")),
            json::parse(R"({"eos_token": "<|im_end|>"})"));
}

// rope_scaling counts before rope_parameters, so it stays what it was, in both spellings.
TEST(ConfigEdits, AScalingThatDiffersFromTheTableIsWrittenInBothSpellings) {
  const json scaling = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
  // The table's theta doesn't count, either.
  json config = with(smollm2(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e4}});
  config["rope_scaling"] = scaling;
  const json written = json::parse(updated_config(config.dump(), "config.json", DType::kF32));
  EXPECT_EQ(written["rope_scaling"], scaling);
  EXPECT_EQ(written["rope_parameters"]["rope_type"], "yarn");
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 1e5);
  const auto values_of = [](const json& of) {
    std::map<std::string, std::string> values;
    for (const ConfigValue& value : parse_config(of.dump(), "config.json").values) {
      values[value.key] = value.value;
    }
    return values;
  };
  EXPECT_EQ(values_of(written), values_of(config));
  json old_only = written;
  old_only.erase("rope_parameters");
  EXPECT_EQ(values_of(old_only), values_of(config));
  json new_only = written;
  new_only.erase("rope_scaling");
  EXPECT_EQ(values_of(new_only), values_of(config));
}

TEST(ConfigEdits, CodeOfATokenizerIsLeftOut) {
  EXPECT_EQ(json::parse(without_code(R"({"auto_map": {"AutoTokenizer": ["t.X", null]}, "a": 1})")),
            json({{"a", 1}}));
  EXPECT_EQ(without_code(R"({"a":   1})"), R"({"a":   1})");
}

}  // namespace
}  // namespace sherd::huggingface
