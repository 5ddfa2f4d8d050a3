#include "engine/model/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

model::ModelShape gpt2(std::int64_t layers, std::int64_t width, std::int64_t heads,
                       std::int64_t vocab, std::int64_t positions, bool bias) {
  model::ModelShape shape;
  shape.num_layers = layers;
  shape.width = width;
  shape.query_heads = shape.kv_heads = heads;
  shape.ffn_width = 4 * width;
  shape.vocab_size = vocab;
  shape.max_positions = positions;
  if (bias) shape.biases = model::Biases::everywhere();
  shape.tied = true;
  return shape;
}

model::ModelShape llama(std::int64_t layers, std::int64_t width, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocab) {
  model::ModelShape shape;
  shape.num_layers = layers;
  shape.width = width;
  shape.query_heads = heads;
  shape.kv_heads = kv_heads;
  shape.ffn_width = ffn;
  shape.vocab_size = vocab;
  shape.max_positions = 2048;
  shape.norm = kernels::NormKind::kRmsNorm;
  shape.positions = model::Positions::kRope;
  shape.activation = kernels::ActivationKind::kSwiGlu;
  return shape;
}

// "unit: name [shape], name [shape]" a line.
std::string text_of(const std::vector<UnitSpec>& units) {
  std::string text;
  for (const UnitSpec& unit : units) {
    text +=
        fmt::format("{} ({})\n", unit.name, unit.unit_class == UnitClass::kEdge ? "edge" : "block");
    for (const ParameterSpec& parameter : unit.parameters) {
      std::string sizes;
      for (const std::int64_t size : parameter.shape) sizes += fmt::format(" {}", size);
      text += fmt::format("  {}{}\n", parameter.name, sizes);
    }
  }
  return text;
}

TEST(ParameterTable, OfAGpt2ShapeHasBiasesPositionsAndATiedHead) {
  EXPECT_EQ(text_of(model::parameter_table(gpt2(1, 8, 2, 11, 5, true))),
            "embedding (edge)\n"
            "  embedding.token.weight 11 8\n"
            "  embedding.position.weight 5 8\n"
            "  final_norm.weight 8\n"
            "  final_norm.bias 8\n"
            "block.0 (block)\n"
            "  block.0.norm1.weight 8\n"
            "  block.0.norm1.bias 8\n"
            "  block.0.attention.qkv.weight 24 8\n"
            "  block.0.attention.qkv.bias 24\n"
            "  block.0.attention.output.weight 8 8\n"
            "  block.0.attention.output.bias 8\n"
            "  block.0.norm2.weight 8\n"
            "  block.0.norm2.bias 8\n"
            "  block.0.mlp.up.weight 32 8\n"
            "  block.0.mlp.up.bias 32\n"
            "  block.0.mlp.down.weight 8 32\n"
            "  block.0.mlp.down.bias 8\n");
}

TEST(ParameterTable, OfALlamaShapeHasGroupedHeadsAGatedMlpAndAHeadOfItsOwn) {
  EXPECT_EQ(text_of(model::parameter_table(llama(1, 8, 4, 2, 12, 11))),
            "embedding (edge)\n"
            "  embedding.token.weight 11 8\n"
            "block.0 (block)\n"
            "  block.0.norm1.weight 8\n"
            "  block.0.attention.qkv.weight 16 8\n"
            "  block.0.attention.output.weight 8 8\n"
            "  block.0.norm2.weight 8\n"
            "  block.0.mlp.up.weight 24 8\n"
            "  block.0.mlp.down.weight 8 12\n"
            "head (edge)\n"
            "  final_norm.weight 8\n"
            "  head.weight 11 8\n");
}

TEST(ParameterTable, NumbersParametersInOrderAcrossUnits) {
  std::uint32_t next = 0;
  std::set<std::string> names;
  for (const UnitSpec& unit : model::parameter_table(tiny_model(true))) {
    for (const ParameterSpec& parameter : unit.parameters) {
      EXPECT_EQ(parameter.index, next++) << parameter.name;
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    }
  }
}

// Published counts: OpenAI's gpt2 checkpoint, Meta's Llama 2 7B and Llama 3 8B. nanoGPT prints
// 0.80M for its CPU run, position embeddings left out.
TEST(ParameterTable, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(model::num_parameters(gpt2(12, 768, 12, 50257, 1024, true)), 124'439'808);
  EXPECT_EQ(model::num_parameters(llama(32, 4096, 32, 32, 11008, 32000)), 6'738'415'616);
  EXPECT_EQ(model::num_parameters(llama(32, 4096, 32, 8, 14336, 128256)), 8'030'261'248);
  const std::int64_t nano = model::num_parameters(gpt2(4, 128, 4, 65, 64, false)) - 64 * 128;
  EXPECT_EQ(fmt::format("{:.2f}M", static_cast<double>(nano) / 1e6), "0.80M");
}

ValuesByName initial_values(const engine::TrainingOptions& options, const RunShape& setup) {
  const engine::TrainingOptions used = applied(options, setup);
  ValuesByName values = empty_parameters(used.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(used, rank);
    rank.guard([&] { collect_parameters(model, values); });
  });
  return values;
}

struct Moments {
  double mean = 0.0, stddev = 0.0, within_one_sigma = 0.0;
};
Moments moments_of(const std::vector<float>& values, double sigma) {
  Moments moments;
  const auto n = static_cast<double>(values.size());
  double squares = 0.0;
  for (const double x : values) {
    moments.mean += x / n;
    squares += x * x / n;
    moments.within_one_sigma += std::abs(x) < sigma ? 1.0 / n : 0.0;
  }
  moments.stddev = std::sqrt(squares - moments.mean * moments.mean);
  return moments;
}

// Each statistic within five of its own standard errors.
void expect_normal(const std::vector<float>& values, double sigma, const std::string& name) {
  const auto n = static_cast<double>(values.size());
  const Moments moments = moments_of(values, sigma);
  EXPECT_NEAR(moments.mean, 0.0, 5 * sigma / std::sqrt(n)) << name;
  EXPECT_NEAR(moments.stddev, sigma, 5 * sigma / std::sqrt(2 * n)) << name;
  EXPECT_NEAR(moments.within_one_sigma, 0.6827, 5 * std::sqrt(0.6827 * 0.3173 / n)) << name;
}

TEST(InitialValues, AreNormalWithSmallerResidualProjectionsAndPlainNorms) {
  model::ModelShape shape = gpt2(4, 64, 4, 65, 64, true);
  const ValuesByName values = initial_values(tiny_training(shape), {});
  for (const auto& [name, tensor] : values) {
    if (name.ends_with(".bias")) {
      EXPECT_EQ(tensor, std::vector<float>(tensor.size(), 0.0f)) << name;
    } else if (name.find("norm") != std::string::npos) {
      EXPECT_EQ(tensor, std::vector<float>(tensor.size(), 1.0f)) << name;
    } else {
      const bool residual =
          name.ends_with("attention.output.weight") || name.ends_with("mlp.down.weight");
      expect_normal(tensor, residual ? 0.02 / std::sqrt(8.0) : 0.02, name);
    }
  }
}

TEST(InitialValues, OfTwoTensorsAreUnrelatedAndAnotherSeedGivesOthers) {
  engine::TrainingOptions options = tiny_training(gpt2(2, 64, 4, 65, 64, false));
  const ValuesByName values = initial_values(options, {});
  const std::vector<float>& a = values.at("block.0.mlp.up.weight");
  const std::vector<float>& b = values.at("block.1.mlp.up.weight");
  double product = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) product += double{a[i]} * double{b[i]};
  const auto n = static_cast<double>(a.size());
  EXPECT_NEAR(product / n / (0.02 * 0.02), 0.0, 5 / std::sqrt(n));
  options.seed = 8;
  EXPECT_NE(initial_values(options, {}).at("block.0.mlp.up.weight"), a);
}

TEST(InitialValues, AreTheSameBitsAtEveryWorldAndStage) {
  for (const bool tied : {false, true}) {
    const engine::TrainingOptions options = tiny_training(tiny_model(tied));
    const ValuesByName expected = initial_values(options, {});
    for (int world = 1; world <= 5; ++world) {
      for (int stage = 0; stage <= 3; ++stage) {
        const RunShape setup{.world_size = world, .stage = stage};
        EXPECT_EQ(initial_values(options, setup), expected) << name_of(setup);
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
