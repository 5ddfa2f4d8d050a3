// Gradients and parameters that ranks send in blocks: the same bits at every stage and on any number of
// ranks, a rank alone included, in planned memory.

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "engine/train/layout/sharding_plan.h"
#include "kernels/block_codec.h"
#include "sharding/zero/gradient_reduction.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/models/wide_model.h"

namespace sherd::testing {
namespace {

using kernels::BlockFormat;
using sharding::GradSync;
using Case = MeshCase;

constexpr int kFewSteps = 3;

struct Wires {
  BlockFormat gather = BlockFormat::kF32, reduce = BlockFormat::kF32, replicas = reduce;
};
std::string name_of(const Wires& wires) {
  return fmt::format("gathers {}, reductions {}, of replicas {}", kernels::name_of(wires.gather),
                     kernels::name_of(wires.reduce), kernels::name_of(wires.replicas));
}
const Wires kWires[] = {
    {.gather = BlockFormat::kInt8},           {.reduce = BlockFormat::kInt8},
    {.gather = BlockFormat::kInt4},           {.reduce = BlockFormat::kInt4},
    {BlockFormat::kInt8, BlockFormat::kInt4}, {BlockFormat::kInt4, BlockFormat::kInt8}};

engine::TrainingOptions with(const Wires& wires, const model::ModelShape& shape,
                             DType compute = DType::kF32) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.model.dtype = compute;
  options.precision.parameters = compute;
  options.precision.gather_blocks = wires.gather;
  options.precision.reduce_blocks = wires.reduce;
  options.precision.replica_blocks = wires.replicas;
  return options;
}

TEST(SlowLinks, StagesAgreeBitForBitWithEveryWireTypeWorldAndSync) {
  int run = 0;
  for (const Wires& wires : kWires) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const GradSync sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
        const auto options = with(wires, tiny_model(run % 2 == 0), compute);
        const RunShape first{
            .world_size = 1 + run % 4, .num_micro_steps = 1 + run % 3, .grad_sync = sync};
        const Outcome stage0 = train(options, first, kFewSteps);
        for (int stage = 1; stage <= 3; ++stage, ++run) {
          RunShape shape = first;
          shape.stage = stage;
          shape.prefetch_depth = run % 3;
          shape.reshard_after_forward = run % 2 == 0;
          shape.threads_per_rank = 1 + run % 2;
          shape.delay_seed = static_cast<std::uint64_t>(run % 2 * (30 + run));
          EXPECT_EQ(difference(stage0, train(options, shape, kFewSteps)), "")
              << name_of(wires) << ", " << name_of(shape);
        }
      }
    }
  }
}

TEST(SlowLinks, OneRankWithFourMicroStepsIsTwoWithTwoAndFourWithOne) {
  for (const Wires& wires : kWires) {
    for (const bool tied : {false, true}) {
      const auto options = with(wires, tiny_model(tied), tied ? DType::kBF16 : DType::kF32);
      const Outcome one = train(options, {.num_micro_steps = 4}, kFewSteps);
      for (int stage = 0; stage <= 3; ++stage) {
        const int world = stage % 2 == 0 ? 4 : 2;
        const RunShape shape{.world_size = world, .num_micro_steps = 4 / world, .stage = stage};
        EXPECT_EQ(difference(one, train(options, shape, kFewSteps)), "")
            << name_of(wires) << ", " << name_of(shape);
      }
    }
  }
}

// Rounded once per micro-step, so only worlds of one size are equal.
TEST(SlowLinks, StagesThatAccumulateIn16BitsAgreeToo) {
  auto options = with(kWires[1], tiny_model(true), DType::kBF16);
  options.precision.accumulate = DType::kBF16;
  const Outcome stage0 = train(options, {.world_size = 2, .num_micro_steps = 2}, kFewSteps);
  for (int stage = 1; stage <= 3; ++stage) {
    const RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    EXPECT_EQ(difference(stage0, train(options, shape, kFewSteps)), "") << name_of(shape);
  }
}

// The sum of a replica is rounded before it is added to another's; so is that of a group of the batch.
TEST(SlowLinks, ReplicasPipelinesAndTensorRanksKeepTheBits) {
  for (const Wires& wires : {kWires[4], kWires[5]}) {
    engine::TrainingOptions options = with(wires, wide_model(false));
    options.model.seq_length = 8;
    for (const Case& each :
         {Case{.shards = 2, .replicas = 2, .stage = 3}, Case{.replicas = 3, .stage = 0},
          Case{.shards = 2, .replicas = 2, .stage = 1, .micro_steps = 2},
          Case{.shards = 2, .pipeline = 2, .stage = 1, .micro_steps = 2},
          Case{.context = 2, .shards = 2, .stage = 2}, Case{.tensor = 2, .shards = 2, .stage = 0},
          Case{.tensor = 2, .shards = 2, .stage = 3}}) {
      const Outcome alone =
          same_batch(options, each, {.context = each.context, .tensor = each.tensor}, 2);
      EXPECT_EQ(difference(run(options, each, 2), alone), "")
          << name_of(wires) << ", " << name_of(each);
    }
  }
}

// Two hops: inside a replica, and between replicas.
const Wires kTwoHops[] = {{.reduce = BlockFormat::kInt8, .replicas = BlockFormat::kInt4},
                          {.reduce = BlockFormat::kF32, .replicas = BlockFormat::kInt8},
                          {.reduce = BlockFormat::kInt4, .replicas = BlockFormat::kF32},
                          {BlockFormat::kInt8, BlockFormat::kF32, BlockFormat::kInt4}};

TEST(SlowLinks, ReplicasMaySendOtherBlocksThanRanksInsideThem) {
  int run_number = 0;
  for (const Wires& wires : kTwoHops) {
    for (int stage = 0; stage <= 3; ++stage, ++run_number) {
      const auto options = with(wires, tiny_model(run_number % 2 == 0),
                                run_number % 3 == 0 ? DType::kBF16 : DType::kF32);
      Case each{.shards = 1 + run_number % 2,
                .replicas = 2 + run_number % 3 / 2,
                .stage = stage,
                .micro_steps = 1 + run_number % 2};
      each.divides_optimizer = stage > 0 && run_number % 4 != 0;
      EXPECT_EQ(difference(run(options, each), same_batch(options, each)), "")
          << name_of(wires) << ", " << name_of(each);
    }
  }
}

TEST(SlowLinks, EachHopRoundsSeparately) {
  const Case each{.shards = 2, .replicas = 2, .stage = 2};
  const auto outcome = [&](BlockFormat reduce, BlockFormat replicas) {
    return run(with({.reduce = reduce, .replicas = replicas}, tiny_model(true)), each);
  };
  const Outcome fine = outcome(BlockFormat::kInt8, BlockFormat::kInt8);
  const Outcome two_hops = outcome(BlockFormat::kInt8, BlockFormat::kInt4);
  EXPECT_NE(difference(fine, two_hops), "");
  EXPECT_NE(difference(two_hops, outcome(BlockFormat::kInt4, BlockFormat::kInt4)), "");
  EXPECT_NE(difference(fine, outcome(BlockFormat::kInt8, BlockFormat::kF32)), "");
}

TEST(SlowLinks, PipelinesContextAndTensorRanksOfReplicasKeepTheBits) {
  for (const Wires& wires : {kTwoHops[0], kTwoHops[3]}) {
    engine::TrainingOptions options = with(wires, wide_model(false));
    options.model.seq_length = 8;
    for (const Case& each : {Case{.replicas = 2, .pipeline = 2, .stage = 1, .micro_steps = 2},
                             Case{.context = 2, .replicas = 2, .stage = 2},
                             Case{.tensor = 2, .replicas = 2, .stage = 3}}) {
      const Outcome alone =
          same_batch(options, each, {.context = each.context, .tensor = each.tensor}, 2);
      EXPECT_EQ(difference(run(options, each, 2), alone), "")
          << name_of(wires) << ", " << name_of(each);
    }
  }
}

TEST(SlowLinks, ReplicasThatDivideTheOptimizerStateReduceAndGatherInBlocks) {
  for (const Wires& wires : {kWires[3], kWires[0], kWires[4]}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const engine::TrainingOptions options = with(wires, tiny_model(true), compute);
      for (int stage = 1; stage <= 3; ++stage) {
        Case each{.shards = 1 + stage % 2, .replicas = 2, .stage = stage, .micro_steps = 2};
        each.divides_optimizer = true;
        EXPECT_EQ(difference(run(options, each), same_batch(options, each)), "")
            << name_of(wires) << ", " << name_of(each);
      }
    }
  }
}

// Both ends of a pipeline add the gradients of a tied matrix as they are.
TEST(SlowLinks, ATiedMatrixAtBothEndsOfAPipelineAgreesAcrossStages) {
  const engine::TrainingOptions options =
      with({BlockFormat::kInt8, BlockFormat::kInt8}, tiny_model(true));
  const Case first{.shards = 2, .pipeline = 2, .micro_steps = 2};
  const Outcome stage0 = run(options, first);
  for (int stage = 1; stage <= 3; ++stage) {
    Case each = first;
    each.stage = stage;
    EXPECT_EQ(difference(run(options, each), stage0), "") << name_of(each);
  }
}

TEST(SlowLinks, ExpertRanksHaveTheBitsOfRanksThatHaveAllExperts) {
  for (const ModelForm& form : expert_forms()) {
    model::ModelShape shape = form.shape;
    shape.moe.experts = 8;
    if (shape.moe.groups > 1) shape.moe.groups = 4;
    if (shape.width * shape.moe.ffn_width % 16 != 0) shape.moe.ffn_width = 16;  // whole blocks
    const auto options = with({BlockFormat::kInt8, BlockFormat::kInt8}, shape);
    const auto axes = [](int expert, int shard) {
      return std::vector<sharding::MeshAxis>{{"expert", expert}, {"shard", shard}};
    };
    const Outcome whole = train(options, {.world_size = 2, .axes = axes(1, 2), .stage = 1}, 2);
    for (const int stage : {0, 3}) {
      const RunShape setup{.world_size = 2, .axes = axes(2, 1), .stage = stage};
      EXPECT_EQ(difference(whole, train(options, setup, 2)), "") << form.name << name_of(setup);
    }
  }
}

TEST(SlowLinks, EveryOptimizerAgreesAcrossStages) {
  using enum optim::OptimizerType;
  for (const optim::OptimizerType type : {kAdamW, kSgd, kLion, kLamb, kLars, kMuon, kDion}) {
    engine::TrainingOptions options =
        with({BlockFormat::kInt8, BlockFormat::kInt8}, tiny_model(true), DType::kBF16);
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    const Outcome stage0 = train(options, {.world_size = 2}, kFewSteps);
    for (int stage = 1; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 2, .stage = stage};
      EXPECT_EQ(difference(stage0, train(options, shape, kFewSteps)), "")
          << static_cast<int>(type) << ", " << name_of(shape);
    }
  }
}

// The ladder above would be empty if blocks didn't reach the computation.
TEST(SlowLinks, BlocksChangeWhatIsComputedALittleAndInt4MoreThanInt8) {
  const RunShape shape{.world_size = 2, .stage = 3};
  const Outcome exact = train(with({}, tiny_model(true)), shape, kFewSteps);
  const auto distance = [&](const Wires& wires) {
    const Outcome other = train(with(wires, tiny_model(true)), shape, kFewSteps);
    double sum = 0;
    for (int step = 0; step < kFewSteps; ++step) {
      EXPECT_NEAR(exact.losses[step], other.losses[step], 0.2) << name_of(wires);
    }
    for (const auto& [name, values] : exact.parameters) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum += std::abs(values[i] - other.parameters.at(name)[i]);
      }
    }
    return sum;
  };
  const double gather8 = distance(kWires[0]), reduce8 = distance(kWires[1]);
  EXPECT_GT(gather8, 0.0);
  EXPECT_GT(reduce8, 0.0);
  EXPECT_GT(distance(kWires[2]), gather8);
  EXPECT_GT(distance(kWires[3]), reduce8);
}

// Gradients that are zero stay zero, next to others in a block: of 24 elements a position, 9 are used.
TEST(SlowLinks, PositionsThatNeverOccurDontMoveInHundredsOfSteps) {
  for (const Wires& wires : {kWires[1], kWires[3]}) {
    engine::TrainingOptions options = with(wires, tiny_model(true));
    options.optimizer.decay = {0.0f, {}};
    options.model.max_positions = 30;
    const std::string name = "embedding.position.weight";
    const RunShape shape{.world_size = 2, .stage = 2};
    const std::vector<float> start = train(options, shape, 1).parameters.at(name);
    const std::vector<float> end = train(options, shape, 300).parameters.at(name);
    const auto used = static_cast<std::size_t>(options.model.width * options.model.seq_length);
    for (std::size_t i = 0; i < start.size(); ++i) {
      if (i < used) {
        EXPECT_NE(start[i], end[i]) << i;
      } else {
        EXPECT_EQ(start[i], end[i]) << i;
      }
    }
  }
}

// An infinity in one rank's gradient reaches the owner of its slice at the same element.
TEST(SlowLinks, AnOverflowOnOneRankIsSkippedByAllAtEveryStage) {
  for (const Wires& wires : {kWires[1], kWires[3]}) {
    Outcome stage0;
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 3, .stage = stage};
      engine::TrainingOptions options = applied(with(wires, tiny_model(true)), shape);
      options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
      options.loss_scaling.initial_scale_power = 8;
      options.loss_scaling.hysteresis = 1;
      Outcome outcome;
      outcome.parameters = empty_parameters(options.model);
      run_ranks(shape, [&](sharding::Rank& rank) {
        engine::ShardedModel model(options, rank);
        engine::TrainingStep training_step(options, model);
        std::vector<std::int32_t> memory;
        const engine::NextBatch next_batch = tokens_for(options, rank, memory);
        rank.guard([&] {
          for (int step = 0; step < 4; ++step) {
            model.gradients().inspect = [&](int unit, sharding::UnitEnd, const Tensor& full) {
              if (step != 1 || rank.rank != 1 || unit != model.block_unit(1)) return;
              full.as<float>()[model.units()[static_cast<std::size_t>(unit)].layout().offset(2)] =
                  -INFINITY;
            };
            const engine::StepResult result = training_step.run(step, next_batch);
            EXPECT_EQ(result.skipped, step == 1) << "rank " << rank.rank << " step " << step;
            if (step == 1) {
              EXPECT_NE(result.overflow.find("block.1."), std::string::npos) << result.overflow;
            }
            if (rank.rank != 0) continue;
            outcome.losses.push_back(result.loss);
            outcome.grad_norms.push_back(result.skipped ? 0.0f : result.grad_norm);
          }
          collect_parameters(model, outcome.parameters);
        });
      });
      if (stage == 0) stage0 = outcome;
      EXPECT_EQ(difference(stage0, outcome), "") << name_of(wires) << ", " << name_of(shape);
    }
  }
}

TEST(SlowLinks, TheLossOfARepeatedBatchFalls) {
  for (const Wires& wires : kWires) {
    const RunShape shape{.world_size = 2, .stage = 3};
    engine::TrainingOptions options = applied(with(wires, tiny_model(true)), shape);
    options.model.dropout = 0.0;
    run_ranks(shape, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep training_step(options, model);
      std::vector<std::int32_t> memory;
      const engine::NextBatch next_batch = tokens_for(options, rank, memory);
      rank.guard([&] {
        std::vector<double> losses;
        for (int step = 0; step < 40; ++step) {
          const auto first_batch = [&](std::int64_t, std::int64_t micro_step) {
            return next_batch(0, micro_step);
          };
          losses.push_back(training_step.run(step, first_batch).loss);
        }
        EXPECT_LT(losses.back(), 0.8 * losses.front()) << name_of(wires);
      });
    });
  }
}

TEST(SlowLinks, TensorRanksMayNotCutABlock) {
  model::ModelShape shape = wide_model(false);
  shape.ffn_width = 96;
  const sharding::Mesh mesh = mesh_of(setup_of({.tensor = 2}));
  const auto error = [&](const Wires& wires) -> std::string {
    try {
      engine::sharding_plan(with(wires, shape), mesh, 0);
    } catch (const UsageError& thrown) {
      return thrown.what();
    }
    return "nothing was refused";
  };
  const std::string rest =
      " sends blocks of 64 elements, and 48 columns of block.0.mlp.down.weight on a rank are no "
      "multiple of that. Use sizes that are multiples of 64 on each rank, or another type.";
  EXPECT_EQ(error(kWires[0]), "mixed_precision.gather_dtype" + rest);
  EXPECT_EQ(error(kWires[1]), "mixed_precision.reduce_dtype" + rest);
  EXPECT_EQ(error({.replicas = BlockFormat::kInt4}), "mixed_precision.replica_reduce_dtype" + rest);
  EXPECT_EQ(error({}), "nothing was refused");
}

TEST(SlowLinksSmall, TwoRanksUnderDelaysAreOneRank) {
  const auto options = with({BlockFormat::kInt8, BlockFormat::kInt4}, tiny_model(true));
  const Outcome one = train(options, {.num_micro_steps = 2}, 2);
  for (const int stage : {1, 3}) {
    EXPECT_EQ(
        difference(one, train(options, {.world_size = 2, .stage = stage, .delay_seed = 5}, 2)), "");
  }
}

}  // namespace
}  // namespace sherd::testing
