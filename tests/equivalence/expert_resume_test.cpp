// Runs of experts that are saved with one number of expert ranks and resumed with another.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

TrainingRun run_with_experts(int stage, int degree, const char* optimizer) {
  return {
      .stage = stage,
      .world = 4,
      .precision = "mixed_precision: {param_dtype: bf16}",
      .optimizer = optimizer,
      .accumulation = "micro_batch_size: 1",
      .more =
          "moe: {num_experts: 8, ffn_hidden_size: 16, shared_ffn_hidden_size: 12, z_loss: 0.01}\n"
          "gradient_clipping: {max_norm: 0.5}",
      .mesh = fmt::format("expert_parallel_degree: {}", degree),
      .zero = "grad_sync: every_micro_step",
      .model = ", bias: false"};
}

TEST(ExpertRanks, GoOnAtAnotherDegreeAsIfTheyHadBeenThereAllAlong) {
  for (const char* optimizer : {"adamw", "muon", "dion"}) {
    const test::TempFolder folder;
    write_data(folder);
    train_in(folder, "whole", run_with_experts(3, 1, optimizer));
    for (const auto& [stage, degree] : {std::pair(0, 2), {1, 4}, {2, 2}, {3, 4}}) {
      const std::string again = fmt::format("again{}", stage), back = fmt::format("back{}", stage);
      fs::copy(folder.file("whole"), folder.file(again), fs::copy_options::recursive);
      const auto forget_the_last = [&](const std::string& run) {
        fs::remove_all(
            folder.file(run + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
      };
      forget_the_last(again);
      train_in(folder, again, run_with_experts(stage, degree, optimizer));
      const std::string what = fmt::format("stage {}, degree {}, {}", stage, degree, optimizer);
      EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, again)) << what;
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, again)) << what;
      // And what expert ranks have saved, with whole experts.
      train_in(folder, back, run_with_experts(stage, degree, optimizer));
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, back)) << what;
      forget_the_last(back);
      train_in(folder, back, run_with_experts(3 - stage, 1, optimizer));
      EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, back)) << what << ", back";
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, back)) << what << ", back";
    }
  }
}

// Each rank writes its rows and columns of experts, each element once.
TEST(ExpertRanks, GoOnOnTensorRanksAtAnotherDegreeAsIfTheyHadBeenThereAllAlong) {
  for (const char* optimizer : {"adamw", "muon", "dion"}) {
    const test::TempFolder folder;
    write_data(folder);
    const auto on_ranks = [&](int stage, int expert) {
      TrainingRun run = run_with_experts(stage, expert, optimizer);
      run.mesh += ", tensor_parallel_degree: 2";
      return run;
    };
    train_in(folder, "whole", on_ranks(3, 1));
    for (const auto& [stage, degree] : {std::pair(0, 4), {3, 2}}) {
      const std::string again = fmt::format("again{}", stage);
      fs::copy(folder.file("whole"), folder.file(again), fs::copy_options::recursive);
      fs::remove_all(
          folder.file(again + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
      train_in(folder, again, on_ranks(stage, degree));
      EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, again)) << stage << optimizer;
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, again)) << stage << optimizer;
    }
  }
}

TEST(ExpertRanks, GoOnWithoutTensorRanksNearTheRunThatHasThem) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run = run_with_experts(3, 2, "adamw");
  run.precision = "mixed_precision: {param_dtype: f32}";
  TrainingRun cut = run;
  cut.mesh += ", tensor_parallel_degree: 2, sequence_parallel: true";
  train_in(folder, "cut", cut);
  fs::copy(folder.file("cut"), folder.file("whole"), fs::copy_options::recursive);
  fs::remove_all(folder.file("whole/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  train_in(folder, "whole", run);
  const auto expected = metrics_of(folder, "cut"), found = metrics_of(folder, "whole");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].contains("loss")) continue;
    EXPECT_NEAR(found[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-4) << i;
  }
}

// The bias and the previous step's counts are in checkpoints.
TEST(ExpertRanks, GoOnWithTheBiasAndTheCountsOfTheStepBefore) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run = run_with_experts(3, 1, "adamw");
  run.more =
      "moe: {num_experts: 8, ffn_hidden_size: 16, score: sigmoid, correction_bias: true, "
      "bias_update_rate: 0.01, balance_scope: previous_step, balance_loss: 0.5}";
  train_in(folder, "whole", run);
  fs::copy(folder.file("whole"), folder.file("again"), fs::copy_options::recursive);
  fs::remove_all(folder.file("again/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  run.mesh = "expert_parallel_degree: 4";
  run.stage = 1;
  train_in(folder, "again", run);
  EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, "again"));
  EXPECT_EQ(final_state(folder, "whole"), final_state(folder, "again"));
}

}  // namespace
}  // namespace sherd::testing
