// A folder means what it means to transformers: config.json with every key absent, null, in its old and its new place.
#include "tests/engine/huggingface/config_variants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace sherd::engine {
namespace {

using config_variants::applied;
using config_variants::Outcome;
using config_variants::Reader;

// Of 32 tokens: what f32 may stray by from transformers' f64.
constexpr double kTolerance = 2e-4;

// Those of the slow suite that told something apart, as config_variants.py chose them.
TEST(ConfigVariants, MeanWhatTheyMeanToTransformersOrAreRefusedByName) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) +
                     "/tests/engine/huggingface/config_variants.json");
  const json values = json::parse(file);
  Reader reader;
  for (const json& family : values.at("families")) {
    for (const json& variant : family.at("variants")) {
      SCOPED_TRACE(std::string(family["base"]["model_type"]) + ": " + std::string(variant["name"]));
      const json& shapes =
          values["shapes"].at(variant.value("tensors", family["tensors"].get<std::size_t>()));
      const Outcome outcome = reader.read(applied(family["base"], variant), shapes);
      if (variant.contains("sherd")) {
        EXPECT_EQ(outcome.refused, std::string(variant["sherd"]));
      } else {
        ASSERT_TRUE(outcome.score) << outcome.refused;
        EXPECT_NEAR(*outcome.score, double(variant["score"]), kTolerance);
      }
    }
  }
}

// All of them, if config_variants.py has written them; what Sherd makes of each goes to FILE.sherd, which the script
// compares.
TEST(ConfigVariantsSlow, AreReadForComparison) {
  const char* path = std::getenv("SHERD_CONFIG_VARIANTS");
  if (!path) GTEST_SKIP() << "set SHERD_CONFIG_VARIANTS to what config_variants.py has written";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::ofstream out(std::string(path) + ".sherd");
  Reader reader;
  json base, usual = json::object(), shapes = json::object();
  for (std::string line; std::getline(file, line);) {
    const json entry = json::parse(line);
    if (entry.contains("shapes")) shapes[entry["shapes"].dump()] = entry["names"];
    if (entry.contains("config")) base = entry["config"];
    if (!entry.contains("name")) continue;
    if (entry["name"] == "as it is" && entry.contains("tensors")) usual = entry["tensors"];
    const json& tensors = entry.value("tensors", usual);
    const Outcome outcome =
        reader.read(applied(base, entry), shapes.value(tensors.dump(), json::object()));
    json result = {{"of", entry["of"]}, {"name", entry["name"]}};
    if (outcome.score) {
      result["score"] = *outcome.score;
    } else {
      result["refused"] = outcome.refused;
    }
    out << result.dump() << "\n";
  }
}

}  // namespace
}  // namespace sherd::engine
