// Predicted memory is allocated memory: in every phase and category, to the byte. `train` runs in
// an arena that holds what was planned and nothing else, and compares (expect_memory_as_planned).

#include <gtest/gtest.h>

#include "tests/support/random/pairwise.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;

constexpr int kWorlds[] = {1, 2, 3, 4, 8};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr int kMicroSteps[] = {1, 4};
constexpr model::Recompute kRecompute[] = {model::Recompute::kNone, model::Recompute::kSelective,
                                           model::Recompute::kFull};
constexpr OptimizerType kOptimizers[] = {
    OptimizerType::kAdamW, OptimizerType::kAdam,      OptimizerType::kSgd,
    OptimizerType::kLion,  OptimizerType::kLamb,      OptimizerType::kLars,
    OptimizerType::kMuon,  OptimizerType::kAdafactor, OptimizerType::kDion};

// Stage, world, type, accumulation, recompute, shape (GPT-2 or Llama with grouped queries, tied or
// not), optimizer, gradients reduced at the boundary or not.
const std::vector<int> kFactors = {4, 5, 3, 2, 3, 4, 9, 2};

void train_as_planned(const std::vector<int>& row) {
  model::ModelShape shape = tiny_model(row[5] % 2 == 0);
  shape.tied = row[5] >= 2;
  shape.dtype = kTypes[row[2]];
  shape.recompute = kRecompute[row[4]];
  engine::TrainingOptions options = tiny_training(shape);
  options.precision = {shape.dtype, DType::kF32, DType::kF32};
  if (shape.dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  options.optimizer.type = kOptimizers[row[6]];
  options.optimizer.momentum = 0.9f;
  train(std::move(options),
        {.world_size = kWorlds[row[1]],
         .num_micro_steps = kMicroSteps[row[3]],
         .stage = row[0],
         .grad_sync = row[7] == 0 ? GradSync::kEveryMicroStep : GradSync::kBoundary,
         .prefetch_depth = row[1] % 4,
         .reshard_after_forward = (row[0] + row[6]) % 3 != 0},
        2);
}

TEST(MemoryContract, WhatIsPlannedIsAllocatedToTheByteInEveryPhase) {
  for (const std::vector<int>& row : pairwise_cover(kFactors)) train_as_planned(row);
}

TEST(MemoryContractSlow, FullMatmul) {
  int runs = 0;
  for_full_matmul(kFactors, [&](const std::vector<int>& row) {
    train_as_planned(row);
    ++runs;
  });
  std::printf("%d runs\n", runs);
}

TEST(PairwiseCover, HoldsEveryPairAndIsFarFromTheProduct) {
  const auto rows = pairwise_cover(kFactors);
  for (std::size_t f = 0; f < kFactors.size(); ++f) {
    for (std::size_t g = f + 1; g < kFactors.size(); ++g) {
      for (int a = 0; a < kFactors[f]; ++a) {
        for (int b = 0; b < kFactors[g]; ++b) {
          bool found = false;
          for (const auto& row : rows) found |= row[f] == a && row[g] == b;
          EXPECT_TRUE(found) << f << '=' << a << ' ' << g << '=' << b;
        }
      }
    }
  }
  EXPECT_LT(rows.size(), 80u);
}

}  // namespace
}  // namespace sherd::testing
