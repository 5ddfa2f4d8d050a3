// The equality ladder with adapters: frozen parameters among trained ones change where things are at
// each stage, and not one bit of what is computed. Memory is compared with its plan in every run
// (training_harness.h).

#include <gtest/gtest.h>
#include <xxhash.h>

#include "engine/model/parameters.h"
#include "engine/plan/memory_plan.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;

constexpr int kSteps = 3;

// Llama's form with an A and B for each of query, key and value, and a trained head; GPT-2's with one
// for the three, a trained embedding (which is the head), and an adapter in front of GELU.
model::ModelShape adapted_model(bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.adapter.rank = 3;
  shape.adapter.scale = 1.5;
  shape.adapter.dropout = 0.2;
  if (tied) {
    shape.adapter.targets = {"attention.qkv", "mlp.up", "mlp.down"};
    shape.adapter.trained_modules = {"embedding.token", "final_norm"};
  } else {
    shape.adapter.targets = {"attention.query", "attention.value", "attention.output",
                             "mlp.gate",        "mlp.up",          "mlp.down"};
    shape.adapter.trained_modules = {"head", "norm2"};
  }
  return shape;
}
// Nothing but A and B: both edge units have nothing to train.
model::ModelShape adapters_alone(bool tied) {
  model::ModelShape shape = adapted_model(tied);
  shape.adapter.trained_modules = {};
  return shape;
}

std::string compare(const model::ModelShape& shape, const RunShape& a, const RunShape& b) {
  return difference(train(tiny_training(shape, 0.5f), a, kSteps),
                    train(tiny_training(shape, 0.5f), b, kSteps));
}

TEST(AdapterLadder, StagesWorldsMicroStepsPrefetchAndDelaysChangeNoBit) {
  int run = 0;
  for (const bool tied : {false, true}) {
    for (const auto& shape : {adapted_model(tied), adapters_alone(tied)}) {
      for (const int world : {1, 2, 4}) {
        const int num_micro_steps = world == 2 ? 4 : 1;
        const RunShape reference{
            .world_size = world, .num_micro_steps = num_micro_steps, .stage = 0};
        for (int stage = 1; stage <= 3; ++stage, ++run) {
          EXPECT_EQ(compare(shape, reference,
                            {.world_size = world,
                             .num_micro_steps = num_micro_steps,
                             .stage = stage,
                             .prefetch_depth = run % 4,
                             .reshard_after_forward = run % 3 != 0,
                             .threads_per_rank = 1 + run % 2,
                             .delay_seed = run % 2 ? 300u + run : 0u}),
                    "")
              << "stage " << stage << " of " << world << " ranks";
        }
      }
    }
  }
}

TEST(AdapterLadder, OneRankWithFourMicroStepsIsTwoWithTwoAndFourWithOne) {
  for (const bool tied : {false, true}) {
    for (const auto& shape : {adapted_model(tied), adapters_alone(tied)}) {
      const RunShape one{.world_size = 1, .num_micro_steps = 4};
      for (const int stage : {0, 2, 3}) {
        EXPECT_EQ(compare(shape, one, {.world_size = 2, .num_micro_steps = 2, .stage = stage}), "");
        EXPECT_EQ(compare(shape, one, {.world_size = 4, .stage = stage}), "");
      }
    }
  }
}

TEST(AdapterLadder, GradientsAtTheBoundaryAgreeAtEveryStage) {
  for (int stage = 1; stage <= 3; ++stage) {
    const RunShape at_boundary{
        .world_size = 2, .num_micro_steps = 4, .stage = stage, .grad_sync = GradSync::kBoundary};
    RunShape stage0 = at_boundary;
    stage0.stage = 0;
    EXPECT_EQ(compare(adapted_model(false), stage0, at_boundary), "") << "stage " << stage;
  }
}

TEST(AdapterLadder, RecomputeChangesNoBitInAnyPrecision) {
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      model::ModelShape shape = adapted_model(tied);
      shape.dtype = dtype;
      const auto outcome = [&](model::Recompute recompute, int stage) {
        shape.recompute = recompute;
        engine::TrainingOptions options = tiny_training(shape);
        options.precision = {dtype, DType::kF32, DType::kF32};
        return train(std::move(options), {.world_size = 2, .stage = stage}, kSteps);
      };
      const Outcome none = outcome(model::Recompute::kNone, 0);
      for (const int stage : {0, 3}) {
        EXPECT_EQ(difference(none, outcome(model::Recompute::kSelective, stage)), "");
        EXPECT_EQ(difference(none, outcome(model::Recompute::kFull, stage)), "");
      }
    }
  }
}

TEST(AdapterLadder, EveryOptimizerAgreesAtEveryStage) {
  for (const OptimizerType type : {OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
                                   OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon,
                                   OptimizerType::kAdafactor, OptimizerType::kDion}) {
    for (const auto& shape : {adapted_model(false), adapters_alone(true)}) {
      engine::TrainingOptions options = tiny_training(shape);
      options.optimizer.type = type;
      options.optimizer.momentum = 0.9f;
      const Outcome stage0 = train(options, {.world_size = 2}, kSteps);
      for (int stage = 1; stage <= 3; ++stage) {
        EXPECT_EQ(difference(stage0, train(options, {.world_size = 2, .stage = stage}, kSteps)), "")
            << "optimizer " << static_cast<int>(type) << ", stage " << stage;
      }
    }
  }
}

TEST(AdapterLadder, ReplicasAreGroupsOfTheBatch) {
  const auto options = tiny_training(adapted_model(false));
  const Outcome groups = train(
      options, {.world_size = 2, .num_micro_steps = 2, .stage = 3, .batch_groups = 2}, kSteps);
  RunShape replicas{.num_micro_steps = 1, .stage = 3};
  replicas.axes = {{std::string(sharding::kReplicateAxis), 2},
                   {std::string(sharding::kShardAxis), 2}};
  replicas.world_size = 4;
  EXPECT_EQ(difference(groups, train(options, replicas, kSteps)), "");
}

TEST(AdapterLadder, ADeviceWithMemoryOfItsOwnChangesNoBit) {
  for (const int stage : {0, 3}) {
    const RunShape here{.world_size = 2, .stage = stage};
    RunShape apart = here;
    apart.place = RunShape::Place::kApart;
    EXPECT_EQ(compare(adapted_model(false), here, apart), "") << "stage " << stage;
  }
}

// B begins at zero, so the adapter adds nothing to the first forward; not even GELU's product, which is
// computed in another way, changes a bit.
TEST(Adapter, TheFirstLossIsThatOfTheModelWithoutIt) {
  for (const bool tied : {false, true}) {
    const double without = train(tiny_training(tiny_model(tied)), {}, 1).losses[0];
    EXPECT_EQ(train(tiny_training(adapted_model(tied)), {}, 1).losses[0], without);
  }
}

std::uint64_t digest_at_rest(const engine::ShardedModel& model) {
  std::uint64_t digest = 0;
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.plan().has_frozen()) continue;
    digest = XXH3_64bits_withSeed(unit.frozen().data,
                                  static_cast<std::size_t>(unit.frozen().bytes()), digest);
  }
  return digest;
}

TEST(Adapter, TrainingLeavesEveryFrozenByte) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int stage : {0, 1, 2, 3}) {
      model::ModelShape shape = adapted_model(stage % 2 == 0);
      shape.dtype = dtype;
      const RunShape setup{.world_size = 2, .stage = stage};
      engine::TrainingOptions options = applied(tiny_training(shape), setup);
      options.precision = {dtype, DType::kF32, DType::kF32};
      run_ranks(setup, [&](sharding::Rank& rank) {
        engine::ShardedModel model(options, rank);
        engine::TrainingStep training_step(options, model);
        std::vector<std::int32_t> memory;
        rank.guard([&] {
          rank.compute().synchronize();
          const std::uint64_t before = digest_at_rest(model);
          for (int step = 0; step < kSteps; ++step) {
            training_step.run(step, tokens_for(options, rank, memory));
          }
          rank.compute().synchronize();
          EXPECT_EQ(digest_at_rest(model), before);
        });
      });
    }
  }
}

// The bytes of a frozen parameter are those of the compute type and no others: no gradient, no FP32
// slice, no moments.
TEST(Adapter, FrozenParametersTakeTheComputeTypesBytesAndTrainedOnesWhatTheyAlwaysTake) {
  model::ModelShape shape = adapters_alone(false);
  shape.dtype = DType::kBF16;
  for (const int stage : {0, 3}) {
    const RunShape setup{.world_size = 4, .stage = stage};
    engine::TrainingOptions options = applied(tiny_training(shape), setup);
    options.precision = {DType::kBF16, DType::kF32, DType::kF32};
    BytesByCategory bytes{};
    for (const BufferSpec& buffer :
         engine::training_buffers(options, {.mesh = mesh_of(setup), .num_threads = 1})) {
      if (buffer.phases == kAlways)
        bytes[static_cast<std::size_t>(buffer.category)] += buffer.bytes();
    }
    std::int64_t trained = 0, frozen = 0;  // elements of a rank, each parameter padded by hand
    const auto padded = [](std::int64_t numel, std::int64_t multiple) {
      return (numel + multiple - 1) / multiple * multiple;
    };
    for (const UnitSpec& unit : model::parameter_table(shape)) {
      std::int64_t of_unit[2] = {0, 0};
      for (const ParameterSpec& parameter : unit.parameters) {
        const bool is_adapter = parameter.name.find(".lora_") != std::string::npos;
        of_unit[is_adapter ? 0 : 1] += padded(parameter.numel(), 64);
      }
      trained += padded(of_unit[0], 4 * 64) / (stage == 3 ? 4 : 1);
      frozen += padded(of_unit[1], 4 * 64) / (stage == 3 ? 4 : 1);
    }
    const auto of = [&](Category category) { return bytes[static_cast<std::size_t>(category)]; };
    EXPECT_EQ(of(Category::kParameters), 2 * frozen + (stage == 3 ? 0 : 2 * trained));
    EXPECT_EQ(of(Category::kMaster), 4 * trained);
    EXPECT_EQ(of(Category::kGradients), 4 * trained);
    EXPECT_EQ(of(Category::kOptimizer), 8 * trained);
  }
}

}  // namespace
}  // namespace sherd::testing
