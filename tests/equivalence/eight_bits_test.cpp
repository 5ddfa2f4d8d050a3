// Runs with moments in 8 bits: bit for bit the run of one rank, however state is sharded, and after
// resumes on other ranks.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "checkpoint/store/committed.h"
#include "core/error.h"
#include "engine/saving/run_state.h"
#include "engine/train/layout/sharding_plan.h"
#include "kernels/eight_bits.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/wide_model.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using Case = MeshCase;
using optim::OptimizerType;

engine::TrainingOptions in_8_bits(const model::ModelShape& shape, OptimizerType type) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.optimizer.type = type;
  options.optimizer.moment_type.in_8_bits = true;
  return options;
}

TEST(EightBits, RunsAreThoseOfOneRankAtEveryStageAndWorld) {
  for (const OptimizerType type :
       {OptimizerType::kAdamW, OptimizerType::kAdam, OptimizerType::kLion}) {
    const engine::TrainingOptions options = in_8_bits(tiny_model(true), type);
    for (int world = 1; world <= 4; ++world) {
      const Outcome one = train(options, {.world_size = 1, .num_micro_steps = world}, 4);
      for (int stage = 0; stage <= 3; ++stage) {
        const RunShape shape{
            .world_size = world, .stage = stage, .threads_per_rank = 1 + stage % 2};
        EXPECT_EQ(difference(train(options, shape, 4), one), "") << name_of(shape);
      }
    }
  }
}

TEST(EightBits, AreFewerBitsThanF32) {
  engine::TrainingOptions options = in_8_bits(tiny_model(true), OptimizerType::kAdamW);
  const Outcome few = train(options, {}, 4);
  options.optimizer.moment_type = {};
  EXPECT_NE(difference(few, train(options, {}, 4)), "");
}

TEST(EightBits, ReplicasPipelinesAndTensorRanksKeepTheBits) {
  const engine::TrainingOptions options = in_8_bits(wide_model(false), OptimizerType::kAdamW);
  for (const Case& each :
       {Case{.shards = 2, .replicas = 2, .stage = 3}, Case{.replicas = 3, .stage = 0},
        Case{.shards = 2, .pipeline = 2, .stage = 1, .micro_steps = 2},
        Case{.tensor = 2, .shards = 2, .stage = 0}, Case{.tensor = 2, .shards = 3, .stage = 2},
        Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3}}) {
    EXPECT_EQ(difference(run(options, each), same_batch(options, each, {.tensor = each.tensor})),
              "")
        << name_of(each);
  }
  Case divided{.shards = 2, .replicas = 2, .stage = 2};
  divided.divides_optimizer = true;
  EXPECT_EQ(difference(run(options, divided), same_batch(options, divided)), "");
}

TEST(EightBits, TensorRanksMayNotCutABlock) {
  model::ModelShape shape = wide_model(false);
  shape.ffn_width = 96;
  const engine::TrainingOptions options = in_8_bits(shape, OptimizerType::kLion);
  const sharding::Mesh mesh = mesh_of(setup_of({.tensor = 2}));
  try {
    engine::sharding_plan(options, mesh, 0);
    FAIL() << "nothing was refused";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              "optimizer.eight_bit_states has a scale for every 64 elements, and 48 columns of "
              "block.0.mlp.down.weight on a rank are no multiple of that. Use sizes that are "
              "multiples of 64 on each rank, or leave it out.");
  }
}

// By tensor: first moments after a step, and the scales of their blocks, from what all ranks save.
struct Moments {
  std::map<std::string, std::vector<float>> scales, values;
};
Moments after_a_step(const engine::TrainingOptions& of, const Case& each) {
  const RunShape setup = setup_of(each);
  const engine::TrainingOptions options = applied(of, setup);
  const auto tensors = engine::state_tensors(options);
  std::map<std::string, std::vector<std::uint8_t>> codes;
  Moments moments;
  std::mutex mutex;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] { training_step.run(0, next_batch); });
    rank.compute().synchronize();
    const sharding::State state =
        engine::run_state(options, model, training_step, engine::Pieces::kOwned);
    const std::lock_guard lock(mutex);
    const auto put = [](const sharding::StateTensor& tensor, const sharding::StatePiece& piece,
                        const auto* from, auto& all) {
      all.resize(static_cast<std::size_t>(tensor.numel()));
      for (std::int64_t i = 0; i < piece.count; ++i) {
        all[static_cast<std::size_t>(
            sharding::element_of_tensor(tensor, piece.band, piece.first_element + i))] = from[i];
      }
    };
    for (const sharding::StatePiece& piece : state.pieces) {
      const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(piece.tensor)];
      if (tensor.kind == "exp_avg") {
        put(tensor, piece, piece.data.as<std::uint8_t>(), codes[tensor.name]);
      } else if (tensor.kind == "exp_avg_scale") {
        put(tensor, piece, piece.data.as<float>(), moments.scales[tensor.name]);
      }
    }
  });
  for (const auto& [name, all] : codes) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      moments.values[name].push_back(kernels::eight_bit_map(true).value[all[i]] *
                                     moments.scales[name].at(i / 64));
    }
  }
  return moments;
}

// A whole tensor's scales fit its codes, whichever ranks have saved them. The values of a code are
// less than 0.015 apart.
TEST(EightBits, TensorRanksSaveTheMomentsOfWholeTensors) {
  const engine::TrainingOptions options = in_8_bits(wide_model(false), OptimizerType::kAdamW);
  const Moments one = after_a_step(options, {.micro_steps = 2});
  for (const Case& each :
       {Case{.tensor = 2, .micro_steps = 2}, Case{.tensor = 2, .shards = 2, .stage = 2}}) {
    const Moments cut = after_a_step(options, each);
    ASSERT_EQ(cut.values.size(), one.values.size());
    for (const auto& [name, values] : one.values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float scale = one.scales.at(name)[i / 64];
        ASSERT_NEAR(cut.values.at(name)[i], values[i], 0.02f * scale + 1e-9f)
            << name << "[" << i << "], " << name_of(each);
      }
    }
  }
}

std::string last_step() {
  return checkpoint::step_directory_name(kSteps);
}

TEST(EightBits, AResumeOnOtherRanksIsTheRunThatNeverStopped) {
  const test::TempFolder folder;
  write_data(folder);
  for (const char* optimizer : {"adamw", "lion"}) {
    TrainingRun run{.stage = 3,
                    .world = 3,
                    .precision = "mixed_precision: {param_dtype: bf16}",
                    .optimizer = std::string(optimizer) + ", eight_bit_states: true",
                    .accumulation = "gradient_accumulation_steps: 1"};
    fs::remove_all(folder.file("whole"));
    train_in(folder, "whole", run);
    const auto kept_batch = [&run](int world) {  // micro-batches of four rows, as on three ranks
      run.world = world;
      run.accumulation = "micro_batch_size: 4";
    };
    for (int world = 1; world <= 3; world += 2) {
      for (int stage = 0; stage <= 3; ++stage) {
        kept_batch(world);
        run.stage = stage;
        fs::remove_all(folder.file("again"));
        fs::copy(folder.file("whole"), folder.file("again"), fs::copy_options::recursive);
        fs::remove_all(folder.file("again/checkpoints/" + last_step()));
        train_in(folder, "again", run);
        EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, "again"))
            << "stage " << stage << " on " << world;
        EXPECT_EQ(final_state(folder, "whole"), final_state(folder, "again"))
            << "stage " << stage << " on " << world;
      }
    }
  }
}

TEST(EightBits, AResumeWithoutThemIsRefused) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.world = 1,
                  .precision = "",
                  .optimizer = "adamw, eight_bit_states: true",
                  .accumulation = "gradient_accumulation_steps: 1"};
  train_in(folder, "run", run);
  run.optimizer = "adamw";
  try {
    train_in(folder, "run", run);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer.eight_bit_states"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sherd::testing
