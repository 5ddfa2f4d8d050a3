#include "engine/train/evaluation.h"

#include <gtest/gtest.h>

#include "engine/model/transformer.h"
#include "engine/schedule/generate.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kBatchSize = 3;  // no multiple of a micro-batch's two rows

// 401 bytes below 41; the last 40 % are 161 tokens, which is 17 windows of 9: no multiple of any
// micro-batch (2 rows) or world.
class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() : options_(tiny_training(tiny_model(true))) {
    std::string bytes;
    for (unsigned i = 0; i < 401; ++i) bytes.push_back(static_cast<char>(i * i % 37 + i % 4));
    dataset_ = data::open_dataset({.path = folder_.write("text.txt", bytes),
                                   .validation_fraction = 0.4,
                                   .vocab_size = options_.model.vocab_size,
                                   .seq_length = options_.model.seq_length});
  }

  data::Batcher batcher(int world) const {
    return {dataset_,
            {.seq_length = options_.model.seq_length,
             .micro_batch_size = options_.model.sequences,
             .world = world,
             .seed = 5}};
  }

  // Ranks that share no batch.
  static int data_ranks(const RunShape& setup) {
    const sharding::Mesh mesh = mesh_of(setup);
    return mesh.world_size() / mesh.degree(sharding::kPipelineAxis);
  }

  engine::EvaluationResult evaluate(const RunShape& setup, std::int64_t num_batches) const {
    const engine::TrainingOptions options = applied(options_, setup);
    const data::Batcher batches = batcher(data_ranks(setup));
    std::vector<engine::EvaluationResult> results(static_cast<std::size_t>(setup.world_size));
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::Evaluation evaluation(options, model, batches, kBatchSize);
      rank.guard([&] { results[rank.rank] = evaluation.run(num_batches); });
    });
    for (const engine::EvaluationResult& result : results) {
      EXPECT_EQ(result.loss, results[0].loss);
      EXPECT_EQ(result.num_tokens, results[0].num_tokens);
      EXPECT_EQ(result.loss_20_batches, results[0].loss_20_batches);
    }
    return results[0];
  }

  // One window at a time, straight through the model.
  double plain_loss(std::int64_t num_windows) const {
    const data::Batcher batches = batcher(1);
    const std::int64_t tokens = options_.model.seq_length;
    double sum = 0.0;
    run_ranks({}, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options_, rank);
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(tokens)), targets = inputs;
      const Tensor in{inputs.data(), DType::kI32, tokens}, out{targets.data(), DType::kI32, tokens};
      rank.guard([&] {
        model.transformer().resize(1, tokens);
        for (std::int64_t window = 0; window < num_windows; ++window) {
          batches.fill_validation(window, 1, {in, out});
          sum += compute_loss_sum(model, {.inputs = in, .targets = out});
        }
      });
    });
    return sum / static_cast<double>(num_windows * tokens);
  }

  test::TempFolder folder_;
  engine::TrainingOptions options_;
  std::shared_ptr<const data::Dataset> dataset_;
};

constexpr std::int64_t kWindows = 17;

TEST_F(EvaluationTest, OfTheWholeSplitIsTheMeanOverItsWindows) {
  ASSERT_EQ(batcher(1).num_validation_windows(), kWindows);
  const engine::EvaluationResult whole = evaluate({}, 0);
  EXPECT_EQ(whole.num_tokens, kWindows * options_.model.seq_length);
  EXPECT_NEAR(whole.loss, plain_loss(kWindows), 1e-7 * whole.loss);
}

TEST_F(EvaluationTest, IsTheSameAtEveryWorldAndStageDespiteAPartialLastBatch) {
  const engine::EvaluationResult one = evaluate({}, 0);
  for (int world = 1; world <= 3; ++world) {
    for (const int stage : {0, 2, 3}) {
      const RunShape setup{.world_size = world, .stage = stage};
      const engine::EvaluationResult result = evaluate(setup, 0);
      EXPECT_NEAR(result.loss, one.loss, 1e-12 * one.loss) << name_of(setup);
      EXPECT_EQ(result.num_tokens, one.num_tokens) << name_of(setup);
      EXPECT_NEAR(*result.loss_20_batches, *one.loss_20_batches, 1e-12 * one.loss)
          << name_of(setup);
    }
  }
}

// Nine passes over the split, and 30 of the estimate: more than are under way together on two ranks.
TEST_F(EvaluationTest, HasTheBitsOfOneRankOnRanksThatHavePartsOfTheLayers) {
  options_.model.num_layers = 6;
  const engine::EvaluationResult one = evaluate({}, 0);
  for (const schedule::Order order : {schedule::Order::k1F1B, schedule::Order::kInterleaved1F1B,
                                      schedule::Order::kZbV, schedule::Order::kDualPipeV}) {
    options_.pipeline = {order, schedule::default_chunks_per_rank(order)};
    for (const int ranks : {2, 3}) {
      const RunShape setup{.world_size = ranks,
                           .axes = {{"pipeline", ranks}},
                           .num_micro_steps = 6,
                           .stage = ranks,
                           .delay_seed = 23};
      const engine::EvaluationResult result = evaluate(setup, 0);
      EXPECT_EQ(result.loss, one.loss) << schedule::name_of(order) << ranks;
      EXPECT_EQ(result.num_tokens, one.num_tokens);
      EXPECT_EQ(result.loss_20_batches, one.loss_20_batches);
    }
  }
}

TEST_F(EvaluationTest, OfAWorldLargerThanTheSplitLeavesSomeRanksWithoutRows) {
  const RunShape setup{.world_size = 12, .stage = 3};  // 24 rows at a time, 17 windows
  EXPECT_NEAR(evaluate(setup, 0).loss, plain_loss(kWindows), 1e-7 * plain_loss(kWindows));
}

TEST_F(EvaluationTest, OfSomeBatchesTakesTheFirstWindows) {
  const engine::EvaluationResult one = evaluate({}, 3);
  EXPECT_EQ(one.num_tokens, 3 * kBatchSize * options_.model.seq_length);
  EXPECT_NEAR(one.loss, plain_loss(3 * kBatchSize), 1e-7 * one.loss);
  const engine::EvaluationResult three = evaluate({.world_size = 3, .stage = 3}, 3);
  EXPECT_NEAR(three.loss, one.loss, 1e-12 * one.loss) << "batches are the run's, not the world's";
}

TEST_F(EvaluationTest, GivesNanoGptsEstimateOnlyWithTheWholeSplit) {
  EXPECT_FALSE(evaluate({}, 3).loss_20_batches);
  const engine::EvaluationResult whole = evaluate({}, 0);
  ASSERT_TRUE(whole.loss_20_batches);
  EXPECT_NEAR(*whole.loss_20_batches, whole.loss, 0.1 * whole.loss);
  EXPECT_TRUE(evaluate({}, 1000).loss_20_batches) << "more batches than there are is all of them";
}

// Masks are functions of their address, so two evaluations would agree under dropout too.
TEST_F(EvaluationTest, HasNoDropout) {
  ASSERT_GT(options_.model.dropout, 0.0);
  const double with = evaluate({}, 0).loss;
  options_.model.dropout = 0.0;
  EXPECT_EQ(evaluate({}, 0).loss, with);
}

TEST_F(EvaluationTest, ChangesNoParameter) {
  const engine::TrainingOptions options = applied(options_, {});
  const data::Batcher batches = batcher(1);
  run_ranks({}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::Evaluation evaluation(options, model, batches, kBatchSize);
    ValuesByName before = empty_parameters(options.model), after = before;
    rank.guard([&] {
      collect_parameters(model, before);
      EXPECT_EQ(evaluation.run(0).loss, evaluation.run(0).loss);
      collect_parameters(model, after);
      EXPECT_EQ(before, after);
    });
  });
}

}  // namespace
}  // namespace sherd::testing
