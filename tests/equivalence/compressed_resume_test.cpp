// What replicas hadn't sent of compressed gradients, after it was saved and loaded, by as many replicas
// and by others; and resumes of whole runs.

#include <gtest/gtest.h>

#include "checkpoint/store/committed.h"
#include "optim/compression.h"
#include "tests/equivalence/held_state.h"
#include "tests/support/models/wide_model.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

constexpr int kStepsDone = 3;

engine::TrainingOptions low_rank() {
  optim::Compression compression;
  compression.low_rank = {.rank = 2, .start_step = 1, .min_compression_rate = 1.0};
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.compression = std::make_shared<const optim::Compression>(compression);
  return options;
}

engine::TrainingOptions sparse() {
  optim::Compression compression;
  compression.sparse = {.compress_ratio = 0.05, .momentum = 0.9};
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.compression = std::make_shared<const optim::Compression>(compression);
  return options;
}

engine::TrainingOptions decoupled_dion() {
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.optimizer.type = optim::OptimizerType::kDion;
  options.optimizer.momentum = 0.95f;
  options.optimizer.dion_decoupled = true;
  optim::Compression compression;
  compression.dion.optimizer = std::make_shared<const optim::OptimizerOptions>(options.optimizer);
  options.compression = std::make_shared<const optim::Compression>(compression);
  return options;
}

RunShape of(int replicas, int shards, int stage) {
  return {.world_size = replicas * shards,
          .axes = {{"replicate", replicas}, {"shard", shards}},
          .stage = stage};
}

double largest(const std::vector<float>& values) {
  double most = 0.0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

TEST(CompressedResume, HoldsWhatWasSavedOnAsManyReplicas) {
  for (int stage = 0; stage <= 3; ++stage) {
    const test::TempFolder folder;
    const Tensors saved = held_state(low_rank(), folder.path(), of(2, 2, stage), kStepsDone, true);
    const std::vector<float>& first = saved.at("embedding.token.weight/error");
    EXPECT_GT(largest(first), 0.0);
    EXPECT_NE(first, saved.at("replica.1.embedding.token.weight/error"));
    EXPECT_GT(largest(saved.at("embedding.token.weight/power_sgd_q")), 0.0);
    for (int other = 0; other <= 3; ++other) {
      for (const int shards : {1, 3}) {
        EXPECT_TRUE(
            held_state(low_rank(), folder.path(), of(2, shards, other), kStepsDone, false) == saved)
            << stage << " to " << other << " on " << shards;
      }
    }
  }
}

// State is of whole tensors, whatever parts ranks have.
TEST(CompressedResume, HoldsWhatWasSavedByTensorRanks) {
  RunShape apart = of(2, 1, 1);
  apart.world_size = 4;
  apart.axes.push_back({"tensor", 2});
  for (engine::TrainingOptions options : {low_rank(), sparse(), decoupled_dion()}) {
    options.model = wide_model(true);
    const test::TempFolder folder;
    const Tensors saved = held_state(options, folder.path(), apart, kStepsDone, true);
    EXPECT_TRUE(held_state(options, folder.path(), of(2, 2, 2), kStepsDone, false) == saved);
    const test::TempFolder other;
    const Tensors of_one = held_state(options, other.path(), of(2, 1, 1), kStepsDone, true);
    EXPECT_TRUE(held_state(options, other.path(), apart, kStepsDone, false) == of_one);
  }
}

std::vector<double> sum_of_errors(const Tensors& tensors, const std::string& name, int replicas) {
  std::vector<double> sum;
  for (int replica = 0; replica < replicas; ++replica) {
    const std::string prefix = replica == 0 ? "" : fmt::format("replica.{}.", replica);
    const std::vector<float>& errors = tensors.at(prefix + name + "/error");
    sum.resize(errors.size());
    for (std::size_t i = 0; i < errors.size(); ++i) sum[i] += static_cast<double>(errors[i]);
  }
  return sum;
}

TEST(CompressedResume, HoldsVelocitiesToo) {
  const test::TempFolder folder;
  const Tensors saved = held_state(sparse(), folder.path(), of(2, 2, 2), kStepsDone, true);
  for (const char* kind : {"error", "velocity"}) {
    const std::vector<float>& first = saved.at(fmt::format("embedding.token.weight/{}", kind));
    EXPECT_GT(largest(first), 0.0);
    EXPECT_NE(first, saved.at(fmt::format("replica.1.embedding.token.weight/{}", kind)));
  }
  for (int other = 0; other <= 3; ++other) {
    EXPECT_TRUE(held_state(sparse(), folder.path(), of(2, 1 + other % 3, other), kStepsDone,
                           false) == saved)
        << other;
  }
  const Tensors alone = held_state(sparse(), folder.path(), of(1, 2, 2), kStepsDone, false);
  int whole = 0;
  for (const auto& [name, values] : alone) {
    const auto second = saved.find("replica.1." + name);
    if (second == saved.end()) {
      EXPECT_EQ(values, saved.at(name)) << name;
      if (name.ends_with("/velocity")) ++whole;
      continue;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], saved.at(name)[i] + second->second[i]) << name;
    }
  }
  EXPECT_GT(whole, 3);  // norms' and biases', which all replicas have
}

TEST(CompressedResume, HoldsTheMomentumOfEachReplicaAndDealsOutTheirSum) {
  const test::TempFolder folder;
  const Tensors saved = held_state(decoupled_dion(), folder.path(), of(2, 2, 2), kStepsDone, true);
  const std::string name = "block.0.mlp.down.weight/momentum";
  ASSERT_TRUE(saved.contains(name)) << saved.begin()->first;
  EXPECT_GT(largest(saved.at(name)), 0.0);
  EXPECT_NE(saved.at(name), saved.at("replica.1." + name));
  EXPECT_FALSE(saved.contains("embedding.token.weight/momentum"));
  for (int other = 0; other <= 3; ++other) {
    EXPECT_TRUE(held_state(decoupled_dion(), folder.path(), of(2, 1 + other % 3, other), kStepsDone,
                           false) == saved)
        << other;
  }
  const Tensors alone = held_state(decoupled_dion(), folder.path(), of(1, 2, 2), kStepsDone, false);
  for (const auto& [of_one, values] : alone) {
    const auto second = saved.find("replica.1." + of_one);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float also = second == saved.end() ? 0.0f : second->second[i];
      EXPECT_EQ(values[i], saved.at(of_one)[i] + also) << of_one;
    }
  }
}

TEST(CompressedResume, DealsOutTheSumOfErrorsToOtherNumbersOfReplicas) {
  const test::TempFolder folder;
  const Tensors saved = held_state(low_rank(), folder.path(), of(3, 1, 1), kStepsDone, true);
  for (const int replicas : {1, 2, 4}) {
    const Tensors loaded =
        held_state(low_rank(), folder.path(), of(replicas, 2, replicas % 4), kStepsDone, false);
    int compared = 0;
    for (const auto& [name, values] : loaded) {
      if (!name.ends_with("/error")) {
        EXPECT_EQ(values, saved.at(name)) << name;
        continue;
      }
      if (name.starts_with("replica.")) continue;
      const std::string parameter = name.substr(0, name.rfind('/'));
      const auto before = sum_of_errors(saved, parameter, 3);
      const auto after = sum_of_errors(loaded, parameter, replicas);
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_NEAR(after[i], before[i], 1e-6) << name << " of " << replicas;
        EXPECT_NEAR(values[i] * replicas, before[i], 1e-6) << name << " of " << replicas;
      }
      ++compared;
    }
    EXPECT_GT(compared, 5);
  }
}

void expect_resumes_as_one_run(const std::string& optimizer, const std::string& keys) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 2,
                  .world = 2,
                  .precision = "",
                  .optimizer = optimizer,
                  .accumulation = "micro_batch_size: 1",
                  .more = keys,
                  .mesh = "data_parallel_replicate_degree: 2"};
  train_in(folder, "whole", run);
  expect_goes_on_at_every_stage(folder, run, {2, 1});
}

TEST(CompressedResume, AtAnotherStageAndNumberOfShardsIsTheRunThatNeverStopped) {
  expect_resumes_as_one_run("adamw", "powersgd: {rank: 1, start_step: 2, min_compression_rate: 1}");
  expect_resumes_as_one_run("sgd", "dgc: {compress_ratio: 0.05, clip: norm, warmup_epochs: 1}");
  expect_resumes_as_one_run("dion, dion_decoupled: true, dion_average_interval: 3",
                            "gradient_clipping: {max_norm: 0}");
}

}  // namespace
}  // namespace sherd::testing
