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

engine::TrainingOptions decoupled_dion(const model::ModelShape& shape, int replicas,
                                       std::int64_t average_interval = 0,
                                       DType compute = DType::kF32) {
  engine::TrainingOptions options = with(nullptr, shape, compute);
  options.max_norm = 0.0f;
  options.optimizer.type = optim::OptimizerType::kDion;
  options.optimizer.momentum = 0.95f;
  options.optimizer.dion_decoupled = true;
  optim::Compression compression;
  compression.num_replicas = replicas;
  compression.dion = {std::make_shared<const optim::OptimizerOptions>(options.optimizer),
                      average_interval};
  options.compression = std::make_shared<const optim::Compression>(compression);
  return options;
}

engine::TrainingOptions synchronous_dion(const model::ModelShape& shape) {
  engine::TrainingOptions options = decoupled_dion(shape, 1);
  options.optimizer.dion_decoupled = false;
  options.compression = nullptr;
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

TEST(CompressedSums, StagesAndShardsOfDecoupledDionHaveTheSameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    expect_equal_at_every_stage(
        decoupled_dion(tiny_model(true), 3, compute == DType::kF32 ? 2 : 0, compute));
  }
}

// Norms aren't compared: one is of gradients, the other of what takes their place.
TEST(CompressedSums, DecoupledDionOnOneReplicaIsDion) {
  const Case one{.shards = 2, .stage = 2};
  const Outcome expected = run(synchronous_dion(tiny_model(true)), one, kFewSteps);
  const Outcome decoupled = run(decoupled_dion(tiny_model(true), 1), one, kFewSteps);
  EXPECT_EQ(decoupled.losses, expected.losses);
  EXPECT_EQ(decoupled.parameters, expected.parameters);
}

TEST(CompressedSums, DecoupledDionOnReplicasIsDionUpToRounding) {
  const Case three{.shards = 2, .replicas = 3, .stage = 1};
  const Outcome expected = run(synchronous_dion(tiny_model(true)), three, kFewSteps);
  for (const std::int64_t interval : {0, 2}) {
    const Outcome decoupled = run(decoupled_dion(tiny_model(true), 3, interval), three, kFewSteps);
    EXPECT_NE(decoupled.parameters, expected.parameters);  // sums are in another order
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(decoupled.losses[step], expected.losses[step], 2e-4) << step;
    }
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
  for (const auto& options :
       {with(low_rank(2), shape), sgd_with({.compress_ratio = 0.05, .momentum = 0.9}, shape),
        decoupled_dion(shape, 2, 3)}) {
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
  for (engine::TrainingOptions options :
       {with(low_rank(2), wide_model(false)), decoupled_dion(wide_model(false), 2)}) {
    options.model.seq_length = 8;
    const Case first{.context = 2, .shards = 2, .replicas = 2};
    const Outcome expected = run(options, first, kFewSteps);
    for (const int stage : {1, 3}) {
      Case each = first;
      each.stage = stage;
      EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "") << name_of(each);
    }
  }
}

// Four tensor ranks share two heads of keys and values. Copies of them are compared after each step.
TEST(CompressedSums, CopiesOfHeadsStayEqual) {
  for (engine::TrainingOptions options :
       {with(low_rank(2), wide_model(false)), decoupled_dion(wide_model(false), 2),
        sgd_with({.compress_ratio = 0.05, .momentum = 0.9}, wide_model(false))}) {
    options.weight_hash_interval = 1;
    const Case each{.tensor = 4, .replicas = 2, .stage = 1};
    EXPECT_NO_THROW(run(options, each, kFewSteps));
  }
}

// Parts of matrices, by rows and by columns, and keys and values that two ranks of four have. AdamW
// would make something of gradients that are all rounding.
TEST(CompressedSums, TensorRanksAgreeAcrossStagesAndAreNearOne) {
  const model::ModelShape shape = wide_model(false);
  engine::TrainingOptions low = with(low_rank(2), shape);
  low.optimizer.type = optim::OptimizerType::kSgd;
  low.optimizer.momentum = 0.9f;
  low.max_norm = 0.0f;
  for (const engine::TrainingOptions& options :
       {low, decoupled_dion(shape, 2, 2),
        sgd_with({.compress_ratio = 0.2, .momentum = 0.9}, shape)}) {
    const bool is_sparse = options.compression->sparse.active();
    const Case alone{.replicas = 2, .stage = 1, .micro_steps = 2};
    const Outcome one = run(options, alone, kFewSteps);
    for (const int tensor : {2, 4}) {
      Case first = alone;
      first.tensor = tensor;
      const Outcome expected = run(options, first, kFewSteps);
      for (std::size_t step = 0; !is_sparse && step < one.losses.size(); ++step) {
        EXPECT_NEAR(expected.losses[step], one.losses[step],
                    options.compression->dion.active() ? 1e-4 : 1e-5)
            << tensor << " " << step;
      }
      for (int stage = 0; stage <= 3; ++stage) {
        Case each = first;
        each.stage = stage;
        each.shards = tensor == 2 && stage != 2 ? 2 : 1;
        each.micro_steps = 2 / each.shards;
        EXPECT_EQ(difference(run(options, each, kFewSteps), expected), "") << name_of(each);
      }
    }
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
