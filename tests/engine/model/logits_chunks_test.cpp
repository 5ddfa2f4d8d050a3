// The head goes over the tokens in chunks. How many chunks there are changes where sums are
// rounded, and nothing else.

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/activations.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

// 150 tokens, so that the last chunk is a begun one.
model::ModelShape model_of(bool tied, DType dtype) {
  model::ModelShape shape = tiny_model(tied);
  shape.num_layers = 1;
  shape.dropout = 0.0;
  shape.seq_length = shape.max_positions = 75;
  shape.dtype = dtype;
  return shape;
}

// 64 tokens' logits are the smallest chunk.
void cut_into(model::ModelShape& shape, std::int64_t num_chunks) {
  constexpr std::int64_t kTokens[] = {0, 192, 128, 64};
  shape.logits_chunk_elements = kTokens[num_chunks] * shape.vocab_size;
  const std::int64_t chunk = model::logits_chunk_tokens(shape, DeviceKind::kCpu);
  ASSERT_EQ((shape.tokens() + chunk - 1) / chunk, num_chunks);
  ASSERT_TRUE(num_chunks == 1 || shape.tokens() % chunk != 0);
}

struct Computed {
  double loss_sum = 0.0, evaluated = 0.0;
  ValuesByName gradients;
};

Computed compute(const model::ModelShape& shape) {
  engine::TrainingOptions options = tiny_training(shape);
  options.precision.parameters = shape.dtype;
  Computed result;
  result.gradients = empty_parameters(shape);
  run_ranks({.world_size = 1}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    std::vector<std::int32_t> memory;
    const engine::TokenBatch batch = tokens_for(options, rank, memory)(0, 0);
    rank.guard([&] {
      const model::Pass pass{.inputs = batch.inputs, .targets = batch.targets, .training = true};
      compute_gradients(model, pass);
      model.add_losses(shape.tokens(), true);
      result.loss_sum = model.loss_sum().value();
      collect_gradients(model, result.gradients);
      result.evaluated = compute_loss_sum(model, pass);
    });
  });
  return result;
}

double norm_of_values(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

TEST(LogitsChunks, LossesAndGradientsAreThoseOfOneChunk) {
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      model::ModelShape shape = model_of(tied, dtype);
      cut_into(shape, 1);
      const Computed one = compute(shape);
      EXPECT_NEAR(one.evaluated, one.loss_sum, 1e-6 * one.loss_sum);
      for (const std::int64_t num_chunks : {2, 3}) {
        cut_into(shape, num_chunks);
        const Computed many = compute(shape);
        const std::string where =
            fmt::format("{} chunks, {}{}", num_chunks, name_of(dtype), tied ? ", tied" : "");
        EXPECT_NEAR(many.loss_sum, one.loss_sum, 1e-6 * one.loss_sum) << where;
        EXPECT_NEAR(many.evaluated, one.loss_sum, 1e-6 * one.loss_sum) << where;
        for (const auto& [name, expected] : one.gradients) {
          const std::vector<float>& actual = many.gradients.at(name);
          const double rms =
              norm_of_values(expected) / std::sqrt(static_cast<double>(expected.size()));
          // Rounded to bf16 on the way, where an f32 sum in another order may fall differently.
          const double tolerance = dtype == DType::kF32 ? 1e-5 * rms : 0.05 * rms;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(actual[i], expected[i], tolerance) << where << ": " << name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
