// Trainings whose replicas add compressed gradients: the same bits at every stage, in planned memory.

#include <gtest/gtest.h>

#include "optim/compression.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/models/wide_model.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

constexpr int kFewSteps = 4;

std::shared_ptr<const optim::Compression> low_rank(std::int64_t rank, std::int64_t start_step = 1) {
  optim::Compression compression;
  compression.low_rank = {.rank = rank, .start_step = start_step, .min_compression_rate = 1.0};
  return std::make_shared<const optim::Compression>(compression);
}

std::shared_ptr<const optim::Compression> sparse(const optim::SparseOptions& options) {
  optim::Compression compression;
  compression.sparse = options;
  return std::make_shared<const optim::Compression>(compression);
}

engine::TrainingOptions with(std::shared_ptr<const optim::Compression> compression,
                             const model::ModelShape& shape, DType compute = DType::kF32) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.model.dtype = compute;
  options.precision.parameters = compute;
  options.compression = std::move(compression);
  return options;
}

void expect_equal_at_every_stage(const engine::TrainingOptions& options) {
  int run_number = 0;
  for (const int replicas : {1, 2, 3}) {
    const Case first{.replicas = replicas, .micro_steps = 2};
    const Outcome expected = run(options, first, kFewSteps);
    for (int stage = 0; stage <= 3; ++stage, ++run_number) {
      Case each = first;
      each.stage = stage;
      each.shards = run_number % 2 == 0 ? 2 : 1;
      each.micro_steps = 2 / each.shards;
      EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "") << name_of(each);
    }
  }
}

TEST(CompressedSums, StagesAndShardsHaveTheSameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto options = with(low_rank(2), tiny_model(true), compute);
    expect_equal_at_every_stage(options);
  }
}

engine::TrainingOptions sgd_with(const optim::SparseOptions& sparse_options,
                                 const model::ModelShape& shape, DType compute = DType::kF32) {
  engine::TrainingOptions options = with(sparse(sparse_options), shape, compute);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = sparse_options.momentum_correction ? 0.0f : 0.9f;
  return options;
}

TEST(CompressedSums, StagesAndShardsOfSparseOnesHaveTheSameBits) {
  for (const bool corrected : {true, false}) {
    const auto options =
        sgd_with({.compress_ratio = 0.05,
                  .clip = corrected ? optim::LocalClip::kNorm : optim::LocalClip::kValue,
                  .clip_threshold = 0.01,
                  .momentum_correction = corrected,
                  .momentum = corrected ? 0.9 : 0.0},
                 tiny_model(true), corrected ? DType::kBF16 : DType::kF32);
    expect_equal_at_every_stage(options);
  }
}

// Everything is sent, and velocities are as the optimizer's. Without weight decay, since that goes through the
// optimizer's momentum, but not through a corrected one.
TEST(CompressedSums, SparseOnesThatSendAllAreMomentumSgd) {
  engine::TrainingOptions plain = with(nullptr, tiny_model(true));
  plain.optimizer.type = optim::OptimizerType::kSgd;
  plain.optimizer.momentum = 0.9f;
  plain.optimizer.decay.rate = 0.0f;
  plain.max_norm = 0.0f;
  engine::TrainingOptions all = plain;
  all.optimizer.momentum = 0.0f;
  all.compression = sparse({.compress_ratio = 1.0 - 1e-9,
                            .sample_ratio = 1.0,
                            .momentum_masking = false,
                            .momentum = 0.9});
  const Case one{.shards = 2, .stage = 2};  // one replica, whose sum is added once
  const Outcome expected = run(plain, one, kFewSteps), sparsely = run(all, one, kFewSteps);
  for (int step = 0; step < kFewSteps; ++step) {
    EXPECT_NEAR(sparsely.losses[static_cast<std::size_t>(step)],
                expected.losses[static_cast<std::size_t>(step)], 1e-6);
  }
}

TEST(CompressedSums, PipelinesHaveTheBitsOfNone) {
  model::ModelShape shape = tiny_model(false);
  shape.num_layers = 5;
  for (const bool low : {true, false}) {
    const auto options =
        low ? with(low_rank(2), shape) : sgd_with({.compress_ratio = 0.05, .momentum = 0.9}, shape);
    const Case first{.replicas = 2, .micro_steps = 4};
    const Outcome expected = run(options, first, kFewSteps);
    for (const auto order :
         {schedule::Order::k1F1B, schedule::Order::kInterleaved1F1B, schedule::Order::kZbH1}) {
      for (const int stage : {0, 1, 3}) {
        Case each = first;
        each.pipeline = 2;
        each.stage = stage;
        each.order = order;
        EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "") << name_of(each);
      }
    }
  }
}

TEST(CompressedSums, ContextRanksAgreeAcrossStages) {
  engine::TrainingOptions options = with(low_rank(2), wide_model(false));
  options.model.seq_length = 8;
  const Case first{.context = 2, .shards = 2, .replicas = 2};
  const Outcome expected = run(options, first, kFewSteps);
  for (const int stage : {1, 3}) {
    Case each = first;
    each.stage = stage;
    EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "") << name_of(each);
  }
}

TEST(CompressedSums, OptimizersAndAveragesAgreeAcrossStages) {
  using enum optim::OptimizerType;
  for (const optim::OptimizerType type : {kAdamW, kSgd, kLamb, kMuon, kAdafactor, kDion}) {
    engine::TrainingOptions options = with(low_rank(1), tiny_model(true));
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    const Case first{.shards = 2, .replicas = 2};
    const Outcome expected = run(options, first, kFewSteps);
    for (int stage = 1; stage <= 3; ++stage) {
      Case each = first;
      each.stage = stage;
      EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "")
          << static_cast<int>(type) << ", " << name_of(each);
    }
  }
}

// The ladder above would be empty if compression didn't reach the computation.
TEST(CompressedSums, ChangeTheTrainingFromTheirFirstStepOn) {
  const Case replicas{.replicas = 2, .stage = 2};
  const Outcome whole = run(with(nullptr, tiny_model(true)), replicas, kFewSteps);
  const Outcome low = run(with(low_rank(1, 2), tiny_model(true)), replicas, kFewSteps);
  const Outcome never = run(with(low_rank(1, 100), tiny_model(true)), replicas, kFewSteps);
  EXPECT_EQ(difference(never, whole), "");
  EXPECT_EQ(low.grad_norms[1], whole.grad_norms[1]);
  EXPECT_NE(low.grad_norms[2], whole.grad_norms[2]);
  EXPECT_EQ(low.losses[2], whole.losses[2]);
  EXPECT_NE(low.losses[3], whole.losses[3]);
}

}  // namespace
}  // namespace sherd::testing
