// The run on a device whose memory isn't the host's, without a GPU
// (tests/support/devices/separate_device.h): the same bits as in host memory, nothing that host code may
// not touch is touched, and nothing is read before it is there.

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "engine/inference/evaluate.h"
#include "tests/support/devices/separate_device.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/random/pairwise.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;
using Place = RunShape::Place;

constexpr OptimizerType kSeparateOptimizers[] = {
    OptimizerType::kAdamW, OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
    OptimizerType::kLamb,  OptimizerType::kLars, OptimizerType::kMuon};
constexpr DType kSeparateTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Stage, world, micro-steps, optimizer, type, model, deferred, delays.
const std::vector<int> kFactors = {4, 3, 2, 7, 3, 2, 2, 2};

void expect_equal_to_host(const std::vector<int>& row) {
  model::ModelShape shape = tiny_model(row[5] == 0);
  shape.dtype = kSeparateTypes[row[4]];
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.precision = {shape.dtype, DType::kF32, DType::kF32};
  if (shape.dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  options.optimizer.type = kSeparateOptimizers[row[3]];
  options.optimizer.momentum = 0.9f;
  RunShape setup{.world_size = row[1] + 1,
                 .num_micro_steps = row[2] == 0 ? 1 : 3,
                 .stage = row[0],
                 .grad_sync = row[3] % 2 == 0 ? GradSync::kEveryMicroStep : GradSync::kBoundary,
                 .prefetch_depth = row[3] % 3};
  const Outcome on_host = train(options, setup, 3);
  setup.place = row[6] == 0 ? Place::kApart : Place::kApartDeferred;
  setup.delay_seed = row[7] == 0 ? 0 : 31u + static_cast<unsigned>(row[3]);
  EXPECT_EQ(difference(train(options, setup, 3), on_host), "") << name_of(setup);
}

TEST(SeparateDevice, TrainsToTheBitsOfHostMemoryAtEveryStageWorldOptimizerAndType) {
  for (const std::vector<int>& row : pairwise_cover(kFactors)) expect_equal_to_host(row);
}

TEST(SeparateDeviceSmall, ADeferredDeviceTrainsToTheBitsOfHostMemory) {
  expect_equal_to_host({3, 1, 1, 4, 0, 0, 1, 1});
  expect_equal_to_host({1, 1, 0, 6, 1, 1, 1, 0});
}

TrainingRun small_run(int number) {
  constexpr const char* kPrecision[] = {"mixed_precision: {param_dtype: f32}",
                                        "mixed_precision: {param_dtype: bf16}"};
  constexpr const char* kOptimizer[] = {"adamw", "muon", "lamb"};
  return {
      .stage = number % 4,
      .world = 1 + number % 3,
      .precision = kPrecision[number % 2],
      .optimizer = kOptimizer[number % 3],
      .accumulation = number % 2 == 0 ? "micro_batch_size: 2" : "gradient_accumulation_steps: 1",
      .async = number % 4 != 1};
}

// Batches, evaluations, saves, the sample at the end: all of it, in both directions.
TEST(SeparateDevice, WholeRunsHaveTheHostsNumbersAndGoOnFromEachOthersCheckpoints) {
  const test::TempFolder folder;
  write_data(folder);
  const std::string last = "checkpoints/" + checkpoint::step_directory_name(kSteps);
  for (int number = 0; number < 6; ++number) {
    TrainingRun run = small_run(number);
    const std::string host = fmt::format("host{}", number), apart = fmt::format("apart{}", number);
    const auto machine = std::make_shared<SeparateDevice>(number % 2 == 0);
    train_in(folder, host, run);
    run.machine = machine;
    train_in(folder, apart, run);
    EXPECT_EQ(numbers_of(folder, host), numbers_of(folder, apart)) << number;
    EXPECT_EQ(final_state(folder, host), final_state(folder, apart)) << number;
    // The second half again, from the other's checkpoint.
    const std::vector<std::string> state = final_state(folder, host);
    for (const std::string& output : {host, apart}) {
      std::filesystem::remove_all(folder.file(output + "/" + last));
      run.machine = output == host ? machine : nullptr;
      train_in(folder, output, run);
      EXPECT_EQ(final_state(folder, output), state) << number << ", " << output << " resumed";
    }
  }
}

TEST(SeparateDevice, EvaluatesAndSamplesACheckpointAsTheHostDoes) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "run", small_run(3));
  engine::TrainedModelRequest request;
  request.checkpoint = folder.file("run/checkpoints/" + checkpoint::step_directory_name(kSteps));
  const double loss = engine::evaluate_checkpoint(request).loss;
  const std::string text = test::generated_text(request, "the", {.num_tokens = 20});
  for (const bool deferred : {false, true}) {
    request.machine = std::make_shared<SeparateDevice>(deferred);
    EXPECT_EQ(engine::evaluate_checkpoint(request).loss, loss);
    EXPECT_EQ(test::generated_text(request, "the", {.num_tokens = 20}), text);
  }
}

// The test device itself: host code that touches its memory dies.
TEST(SeparateDeviceDeathTest, HostCodeThatReadsDeviceMemoryDies) {
  const auto reads_a_parameter = [] {
    const auto options = tiny_training(tiny_model(true));
    engine::LaunchOptions launch;
    place_ranks(launch, {.place = Place::kApart},
                [&](int r) { return engine::training_buffers(options, {.rank = r}); });
    engine::run_ranks(launch, [&](sharding::Rank& rank) {
      const engine::ShardedModel model(options, rank);
      rank.guard([] {});
      std::printf("%f\n", static_cast<double>(*model.units()[0].fp32_slice(0).as<float>()));
    });
  };
  EXPECT_DEATH(reads_a_parameter(), "");
}

}  // namespace
}  // namespace sherd::testing
