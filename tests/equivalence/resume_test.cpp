// A resumed run equals the run that never stopped: losses, weights, moments and the
// order of the data, bit for bit, whatever stage and world it resumes with.

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "engine/saving/saver.h"
#include "tests/support/random/pairwise.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::posix_disk;

// Uninterrupted; then the same up to the first checkpoint, and again from there.
void expect_resume_equals(const test::TempFolder& folder, const TrainingRun& run,
                          const std::string& label) {
  fs::remove_all(folder.file("whole"));
  fs::remove_all(folder.file("again"));
  train_in(folder, "whole", run);
  fs::copy(folder.file("whole"), folder.file("again"), fs::copy_options::recursive);
  fs::remove_all(folder.file("again/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  train_in(folder, "again", run);
  EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, "again")) << label;
  EXPECT_EQ(final_state(folder, "whole"), final_state(folder, "again")) << label;
}

const char* const kPrecisions[] = {
    "mixed_precision: {param_dtype: f32}", "mixed_precision: {param_dtype: bf16}",
    "mixed_precision: {param_dtype: f16}\nloss_scaling: {mode: dynamic, growth_interval: 3}",
    "mixed_precision: {param_dtype: bf16, optimizer_state_dtype: bf16, stochastic_rounding: true}"};
const char* const kResumeOptimizers[] = {"adamw", "adam", "sgd",       "lion", "lamb",
                                         "lars",  "muon", "adafactor", "dion"};

TEST(Resume, IsTheRunThatNeverStoppedInEveryStageWorldPrecisionAndOptimizer) {
  const test::TempFolder folder;
  write_data(folder);
  for (const std::vector<int>& row : pairwise_cover({4, 4, 4, 9, 2, 2})) {
    const TrainingRun run{
        .stage = row[0],
        .world = row[1] + 1,
        // Adafactor and Dion have no moments in bf16.
        .precision = kPrecisions[row[2] == 3 && row[3] >= 7 ? 1 : row[2]],
        .optimizer = kResumeOptimizers[row[3]],
        .accumulation = row[4] == 0 ? "gradient_accumulation_steps: 1" : "micro_batch_size: 1",
        .async = row[5] == 0};
    expect_resume_equals(
        folder, run,
        fmt::format("stage {}, {} ranks, {}, {}, {}, {}", run.stage, run.world, run.precision,
                    run.optimizer, run.accumulation, run.async ? "async" : "sync"));
  }
}

TEST(Resume, GoesOnAtAnotherStageAsIfItHadBeenThereAllAlong) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 3,
                  .world = 3,
                  .precision = kPrecisions[0],
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1"};
  train_in(folder, "whole", run);
  for (int stage = 0; stage <= 3; ++stage) {
    const std::string again = fmt::format("again{}", stage);
    fs::copy(folder.file("whole"), folder.file(again), fs::copy_options::recursive);
    fs::remove_all(folder.file(again + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    run.stage = stage;
    train_in(folder, again, run);
    EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, again)) << "stage " << stage;
    EXPECT_EQ(final_state(folder, "whole"), final_state(folder, again)) << "stage " << stage;
  }
}

TEST(Resume, TakesTheCheckpointBeforeADamagedOne) {
  const test::TempFolder folder;
  write_data(folder);
  const TrainingRun run{.stage = 2,
                        .world = 2,
                        .precision = kPrecisions[0],
                        .optimizer = "adamw",
                        .accumulation = "gradient_accumulation_steps: 1"};
  train_in(folder, "run", run);
  const std::string step =
      folder.file("run/checkpoints/" + checkpoint::step_directory_name(kSteps));
  const std::int64_t offset =
      Checkpoint(posix_disk(), step).manifest().shards.at(1).datasets.at(0).offset;
  const std::string shard = step + "/" + checkpoint::shard_name(1, 2);
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get());
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  const std::vector<std::string> numbers = numbers_of(folder, "run");
  fs::remove(folder.file("run/metrics.jsonl"));
  // Steps 0 to 3 aren't run again: the run resumes from step 4's checkpoint. The damaged directory
  // stays where it is, since a save never replaces one.
  train_in(folder, "run", run);
  const std::vector<std::string> again = numbers_of(folder, "run");
  EXPECT_EQ(std::vector<std::string>(numbers.begin() + kInterval, numbers.end()), again);
}

// Whole tensors, put together from what every rank holds.
using Tensors = std::map<std::string, std::vector<std::uint32_t>>;
Tensors held_tensors(const engine::TrainingOptions& options, int stage, int world,
                     const std::string& directory, bool save) {
  const RunShape setup{.world_size = world, .stage = stage};
  const engine::TrainingOptions applied_options = applied(options, setup);
  Tensors tensors;
  for (const auto& tensor : engine::state_tensors(applied_options)) {
    tensors[tensor.name + "/" + tensor.kind].resize(static_cast<std::size_t>(tensor.numel()));
  }
  const engine::CheckpointOptions checkpoints{
      .directory = directory,
      .saves = save,
      .interval = save ? 1 : 0,
      .init_from = {},
      .adapter = {},
      .max_steps = 1,
      .fingerprint = std::make_shared<const nlohmann::json>(nlohmann::json::object()),
      .recipe = {},
      .folder = {}};
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(applied_options, rank);
    engine::TrainingStep training_step(applied_options, model);
    engine::Checkpointing checkpointing(applied_options, checkpoints, model, training_step, {});
    engine::Saver saver(checkpointing, {});
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(applied_options, rank, memory);
    rank.guard([&] {
      saver.clear_leftovers();
      const engine::Start start = engine::resume(checkpointing);
      saver.start(start);
      EXPECT_EQ(start.steps_done, save ? 0 : 1);
      if (save) {
        training_step.run(0, next_batch);
        saver.after_step(0, {});
        saver.finish();
      }
      // Every slice that a rank holds, so that at stage 0 all ranks write the same.
      const auto which = rank.rank == 0 ? engine::Pieces::kHeld : engine::Pieces::kOwned;
      const sharding::State state = engine::run_state(applied_options, model, training_step, which);
      for (const sharding::StatePiece& piece : state.pieces) {
        const auto& tensor = state.tensors[piece.tensor];
        const float* values = piece.data.as<float>();
        auto& whole = tensors.at(tensor.name + "/" + tensor.kind);
        if (rank.rank != 0 && setup.stage == 0) continue;  // rank 0 has them all
        for (std::int64_t i = 0; i < piece.count; ++i) {
          whole[piece.first_element + i] = std::bit_cast<std::uint32_t>(values[i]);
        }
      }
    });
  });
  return tensors;
}

// `every`: one of that many pairs of layouts is tried.
void expect_any_layout_holds_what_any_saved(int every) {
  constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8};
  const auto options = tiny_training(tiny_model(true));
  int pair = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world : kWorlds) {
      const test::TempFolder folder;
      const Tensors saved = held_tensors(options, stage, world, folder.path(), true);
      for (int other = 0; other <= 3; ++other) {
        for (const int more : kWorlds) {
          if (++pair % every != 0) continue;
          EXPECT_TRUE(saved == held_tensors(options, other, more, folder.path(), false))
              << "saved at stage " << stage << " on " << world << ", loaded at stage " << other
              << " on " << more;
        }
      }
    }
  }
}

TEST(Resume, WhatOneStageAndWorldSavedIsWhatAnotherHolds) {
  expect_any_layout_holds_what_any_saved(5);
}

TEST(ResumeSlow, WhatAnyStageAndWorldSavedIsWhatAnyOtherHolds) {
  expect_any_layout_holds_what_any_saved(1);
}

}  // namespace
}  // namespace sherd::testing
