// State on disk between uses: bit for bit the run with everything in memory.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "core/error.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "engine/train/units/kept_inputs.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/equivalence/offload_case.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/random/pairwise.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using optim::OptimizerType;

struct Kinds {
  bool optimizer = true, parameters = false;
};
constexpr Kinds kKinds[] = {{true, false}, {false, true}, {true, true}};

engine::TrainingOptions on_disk(engine::TrainingOptions options, const Kinds& kinds) {
  return offloaded(std::move(options), kinds.optimizer, kinds.parameters, false);
}

TEST(Offload, RunsAreThoseOfMemoryAtEveryStageWorldPrecisionAndOptimizer) {
  for (const std::vector<int>& row : pairwise_cover({4, 4, 4, 3, 3, 2, 2})) {
    const engine::TrainingOptions options =
        offload_options(kOffloadedTypes[row[2]], kOffloadedComputeTypes[row[3]]);
    RunShape shape{.world_size = row[1] + 1,
                   .num_micro_steps = 1 + row[5],
                   .stage = row[0],
                   .threads_per_rank = 1 + row[6]};
    const Outcome in_memory = train(options, shape, 4);
    Kinds kinds = kKinds[row[4]];
    if (shape.stage < 3) kinds = {true, false};
    shape.delay_seed = 1;
    EXPECT_EQ(difference(train(on_disk(options, kinds), shape, 4), in_memory), "")
        << name_of(shape) << ", optimizer " << row[2] << ", type " << row[3] << ", kinds "
        << row[4];
  }
}

TEST(Offload, KeepsTheBitsInPipelinesTensorRanksAndReplicas) {
  const engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
  for (const MeshCase& each :
       {MeshCase{.shards = 2, .replicas = 2, .stage = 3}, MeshCase{.replicas = 2, .stage = 0},
        MeshCase{.shards = 2, .pipeline = 2, .stage = 1, .micro_steps = 2},
        MeshCase{.tensor = 2, .shards = 2, .stage = 3}, MeshCase{.tensor = 2, .stage = 0}}) {
    const Kinds kinds{true, each.stage == 3};
    engine::TrainingOptions own = options;
    if (each.tensor > 1) own.model.ffn_width = 38, own.model.vocab_size = 42;
    EXPECT_EQ(difference(run(on_disk(own, kinds), each), run(own, each)), "") << name_of(each);
  }
  MeshCase divided{.shards = 2, .replicas = 2, .stage = 3};
  divided.divides_optimizer = true;
  EXPECT_EQ(difference(run(on_disk(options, {}), divided), run(options, divided)), "");
}

TEST(Offload, KeepsTheBitsOfMomentsInFewerBits) {
  for (const bool in_8_bits : {false, true}) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kF32);
    if (in_8_bits) {
      options.optimizer.moment_type.in_8_bits = true;
    } else {
      options.optimizer.moment_type = {DType::kBF16, true, 7};
    }
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 2, .stage = stage};
      EXPECT_EQ(difference(train(on_disk(options, {true, stage == 3}), shape, 4),
                           train(options, shape, 4)),
                "")
          << name_of(shape);
    }
  }
}

// Each call takes a while, and each another: requests overtake one another where they may.
class SlowDisk final : public test::HookedDisk {
 public:
  SlowDisk() : HookedDisk({}) {}
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    take_a_while();
    return checkpoint::posix_disk().pread(fd, to, bytes, offset);
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    take_a_while();
    return checkpoint::posix_disk().pwrite(fd, from, bytes, offset);
  }
  int num_calls() const { return calls_; }

 private:
  void take_a_while() {
    std::this_thread::sleep_for(std::chrono::microseconds(200 * (++calls_ * 7 % 13)));
  }
  std::atomic<int> calls_ = 0;
};

TEST(Offload, AnUnevenlySlowDiskChangesNoBit) {
  const engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
  SlowDisk slow;
  for (int stage = 0; stage <= 3; ++stage) {
    RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    const Outcome in_memory = train(options, shape, 3);
    shape.disk = &slow;
    EXPECT_EQ(difference(train(on_disk(options, {true, stage == 3}), shape, 3), in_memory), "")
        << name_of(shape);
  }
  EXPECT_GT(slow.num_calls(), 100);
}

TEST(Offload, OfActivationsChangesNoBit) {
  SlowDisk slow;
  for (const int layers : {4, 9}) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
    options.model.num_layers = layers;
    options.model.recompute = model::Recompute::kFull;
    options.model.dropout = 0.1;
    for (int stage = 0; stage <= 3; ++stage) {
      RunShape shape{.world_size = 1 + stage % 2, .num_micro_steps = 2, .stage = stage};
      const Outcome in_memory = train(options, shape, 3);
      engine::TrainingOptions own = on_disk(options, {stage > 1, stage == 3});
      own.model.residual_slots = engine::KeptInputs::slots(layers);
      ASSERT_EQ(own.model.residual_slots, 4);
      shape.disk = &slow;
      EXPECT_EQ(difference(train(own, shape, 3), in_memory), "") << name_of(shape);
    }
  }
  EXPECT_EQ(engine::KeptInputs::slots(3), 0);
}

TEST(Offload, OfActivationsKeepsTheBitsOnTensorRanksAndReplicas) {
  engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kF32);
  options.model.ffn_width = 38;
  options.model.vocab_size = 42;
  options.model.num_layers = 6;
  options.model.recompute = model::Recompute::kFull;
  for (const MeshCase& each : {MeshCase{.tensor = 2, .shards = 2, .stage = 3},
                               MeshCase{.shards = 2, .replicas = 2, .stage = 2}}) {
    engine::TrainingOptions own = options;
    own.model.residual_slots = engine::KeptInputs::slots(6);
    EXPECT_EQ(difference(run(own, each), run(options, each)), "") << name_of(each);
  }
}

// More layers than places for their inputs: what experts were chosen stays with each layer.
TEST(Offload, OfActivationsKeepsTheChoicesOfEveryMixture) {
  for (const ModelForm& form : all_expert_forms()) {
    engine::TrainingOptions options = tiny_training(form.shape, 0.5f);
    options.model.num_layers = 7;
    options.model.recompute = model::Recompute::kFull;
    engine::TrainingOptions own = options;
    own.model.residual_slots = engine::KeptInputs::slots(7);
    const RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = 2};
    EXPECT_EQ(difference(train(own, shape, 2), train(options, shape, 2)), "") << form.name;
  }
}

const char* const kOnDisk = "offload_optimizer: nvme, offload_buffer_mib: 1";
const char* const kAllOnDisk =
    "offload_optimizer: nvme, offload_param: nvme, offload_buffer_mib: 1";

TEST(Offload, ChangesNeitherResultsNorCheckpoints) {
  const test::TempFolder folder;
  write_data(folder);
  int number = 0;
  for (const std::vector<int>& row : pairwise_cover({4, 3, 2, 3, 2})) {
    TrainingRun run{
        .stage = row[0],
        .world = row[1] + 1,
        .precision = row[2] == 0 ? "" : "mixed_precision: {param_dtype: bf16}",
        .optimizer = std::array{"adamw", "lion",
                                "adamw, eight_bit_states: true"}[static_cast<std::size_t>(row[3])],
        .accumulation = row[4] == 0 ? "gradient_accumulation_steps: 1" : "micro_batch_size: 1",
        .async = row[4] == 0};
    const std::string memory = fmt::format("memory{}", ++number);
    const std::string disk = fmt::format("disk{}", number);
    train_in(folder, memory, run);
    run.zero = run.stage == 3 ? kAllOnDisk : kOnDisk;
    train_in(folder, disk, run);
    EXPECT_EQ(numbers_of(folder, memory), numbers_of(folder, disk)) << disk;
    EXPECT_EQ(final_state(folder, memory), final_state(folder, disk)) << disk;
    // Again from the first checkpoint, with everything in memory.
    fs::remove_all(folder.file(disk + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    run.zero.clear();
    train_in(folder, disk, run);
    EXPECT_EQ(final_state(folder, memory), final_state(folder, disk)) << disk << ", resumed";
    // And the other way round, on other ranks and at another stage.
    fs::remove_all(folder.file(memory + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    run.zero = kOnDisk;
    if (row[4] == 0) run.stage = (run.stage + 1) % 4;  // the same grad_sync, by default
    train_in(folder, memory, run);
    EXPECT_EQ(final_state(folder, disk), final_state(folder, memory)) << memory << ", resumed";
  }
}

// Writes of a checkpoint's shards wait until the state on disk has been written so often.
class HeldSaves final : public test::HookedDisk {
 public:
  explicit HeldSaves(int state_writes) : HookedDisk({}), left_(state_writes) {}

  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    const int fd = HookedDisk::open(directory, path, flags, mode);
    const std::lock_guard lock(mutex_);
    is_shard_[fd] = path.find("shard-") != std::string::npos;
    is_state_[fd] = path.find("sherd-state-") != std::string::npos;
    return fd;
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    {
      std::unique_lock lock(mutex_);
      if (is_state_[fd] && held_) --left_;
      if (is_shard_[fd] && left_ > 0) {
        held_ = true;
        ++num_held_;
        changed_.wait(lock, [&] { return left_ <= 0; });
      }
      changed_.notify_all();
    }
    return checkpoint::posix_disk().pwrite(fd, from, bytes, offset);
  }
  int num_held() const { return num_held_; }
  int left() const { return left_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, bool> is_shard_, is_state_;
  bool held_ = false;
  int left_, num_held_ = 0;
};

void train_longer(const test::TempFolder& folder, const std::string& output, const TrainingRun& run,
                  const std::string& zero, checkpoint::Disk& disk) {
  TrainingRun own = run;
  own.zero = zero;
  std::string text = recipe_text(folder, output, own);
  const auto replace = [&text](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace(fmt::format("max_steps: {}", kSteps), "max_steps: 14");
  replace("hidden_size: 24", "hidden_size: 192");  // 11 MB of state
  engine::RecipeRequest request;
  request.path = "long.yaml";
  request.text = text;
  const engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
  engine::train(recipe, engine::choose_machine(recipe.values), disk);
}

TEST(Offload, ASaveThatLastsFiveStepsHasTheStateOfItsOwnStep) {
  const test::TempFolder folder;
  write_data(folder);
  const TrainingRun run{.stage = 3,
                        .precision = "",
                        .optimizer = "adamw",
                        .accumulation = "gradient_accumulation_steps: 1",
                        .interval = 7,
                        .checkpoint = "keep_last: 2, staging_mib: 4"};
  train_longer(folder, "memory", run, "", checkpoint::posix_disk());
  // A step writes three kinds of five blocks.
  HeldSaves disk(5 * 15);
  train_longer(folder, "disk", run, kAllOnDisk, disk);
  EXPECT_GT(disk.num_held(), 0);
  EXPECT_LE(disk.left(), 0);
  for (const int step : {7, 14}) {
    EXPECT_EQ(state_after(folder, "memory", step), state_after(folder, "disk", step)) << step;
  }
}

class FailsAfterSave final : public test::HookedDisk {
 public:
  explicit FailsAfterSave(std::string checkpoint)
      : HookedDisk({}), checkpoint_(std::move(checkpoint)) {}

  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    const int fd = HookedDisk::open(directory, path, flags, mode);
    const std::lock_guard lock(mutex_);
    is_state_[fd] = path.find("sherd-state-") != std::string::npos;
    return fd;
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    if (fails_ && is_late_write(fd) && is_saved_soon()) return -EIO;
    return checkpoint::posix_disk().pwrite(fd, from, bytes, offset);
  }
  void repair() { fails_ = false; }

 private:
  bool is_late_write(int fd) {
    const std::lock_guard lock(mutex_);
    return is_state_[fd] && ++num_writes_ > kEarly;
  }

  // Not longer than a second: the save may need what this thread is to read next.
  bool is_saved_soon() const {
    for (int i = 0; i < 1000 && !fs::exists(checkpoint_); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return fs::exists(checkpoint_);
  }

  static constexpr int kEarly = 50;  // writes of the steps up to the first save, and a few more
  const std::string checkpoint_;
  std::mutex mutex_;
  std::map<int, bool> is_state_;
  int num_writes_ = 0;
  bool fails_ = true;
};

TEST(Offload, ADriveThatFailsEndsTheRunAndLeavesTheCheckpoint) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.precision = "",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .zero = kOnDisk};
  const std::string saved =
      folder.file("run/checkpoints/" + checkpoint::step_directory_name(kInterval));
  // It fails once the first checkpoint is whole. The last steps wait for that, so it does fail.
  FailsAfterSave broken(saved);
  run.disk = &broken;
  std::string error;
  try {
    train_in(folder, "run", run);
  } catch (const Error& caught) {
    error = caught.what();
  }
  EXPECT_NE(error.find("EIO"), std::string::npos) << error;
  EXPECT_TRUE(fs::exists(saved));
  broken.repair();
  train_in(folder, "run", run);
  run.zero.clear();
  train_in(folder, "memory", run);
  EXPECT_EQ(final_state(folder, "memory"), final_state(folder, "run"));
}

std::string refusal_of(const test::TempFolder& folder, const TrainingRun& run) {
  engine::RecipeRequest request;
  request.path = "refused.yaml";
  request.text = recipe_text(folder, "refused", run);
  try {
    engine::resolve_recipe(request);
  } catch (const engine::RecipeErrors& errors) {
    return errors.what();
  }
  return "";
}

TEST(Offload, WhatCannotBeIsRefusedByName) {
  const test::TempFolder folder;
  const auto refused = [&](int stage, const std::string& optimizer, const std::string& zero,
                           const std::string& more) {
    return refusal_of(folder, {.stage = stage,
                               .precision = more,
                               .optimizer = optimizer,
                               .accumulation = "gradient_accumulation_steps: 1",
                               .zero = zero});
  };
  EXPECT_EQ(refused(3, "adamw", kAllOnDisk, ""), "");
  EXPECT_NE(refused(2, "adamw", kAllOnDisk, "").find("at stage 2"), std::string::npos);
  EXPECT_NE(refused(0, "muon", kOnDisk, "").find("muon needs whole tensors"), std::string::npos);
  EXPECT_NE(refused(0, "sgd, momentum: 0", kOnDisk, "").find("has no state"), std::string::npos);
  EXPECT_NE(refused(0, "adamw", "offload_optimizer: cpu", "").find("is cpu"), std::string::npos);
  EXPECT_EQ(refused(0, "adamw", kOnDisk, "averages: {type: ema}"), "");
  EXPECT_NE(refused(3, "adamw", kAllOnDisk, "averages: {type: ema}").find("averages.type"),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
