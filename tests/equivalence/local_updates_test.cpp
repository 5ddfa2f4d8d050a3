// Replicas that train apart (optim/local_updates.h): how a replica's ranks divide its state changes no bit,
// nor do delays; memory and traffic are as planned.

#include <gtest/gtest.h>

#include "engine/train/layout/sharding_plan.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/counted_training.h"

namespace sherd::testing {
namespace {

using optim::LocalUpdates;
using optim::OptimizerType;

const LocalUpdates kDelayed{
    .sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 1, .fragment_update_alpha = 0.25};
const LocalUpdates kPlain{.sync_every = 2};
const LocalUpdates kInt8{.sync_every = 4,
                         .num_fragments = 2,
                         .fragment_sync_delay = 1,
                         .quantize = optim::Quantize::kInt8};
const LocalUpdates kInt4{.sync_every = 2, .quantize = optim::Quantize::kInt4};

engine::TrainingOptions options_of(const LocalUpdates& local,
                                   OptimizerType type = OptimizerType::kAdamW,
                                   DType dtype = DType::kF32) {
  model::ModelShape shape = tiny_model(type == OptimizerType::kAdamW);
  shape.dtype = dtype;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.precision.parameters = dtype;
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  options.local_updates = local;
  return options;
}

/// Two replicas of one rank, with as many micro-batches in a step.
Outcome of_single_ranks(const engine::TrainingOptions& options, const MeshCase& each, int steps,
                        MeshCase left = {}) {
  left.replicas = each.replicas;
  left.micro_steps = each.micro_steps * each.shards;
  return run(options, left, steps);
}

TEST(LocalUpdatesRuns, HaveTheSameBitsAtEveryStageAndOnAnyShards) {
  for (const LocalUpdates& local : {kPlain, kDelayed, kInt8, kInt4}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto options = options_of(local, OptimizerType::kAdamW, dtype);
      const Outcome expected = of_single_ranks(options, {.shards = 2, .replicas = 2}, 6);
      for (int stage = 0; stage <= 3; ++stage) {
        const MeshCase each{.shards = 2, .replicas = 2, .stage = stage};
        EXPECT_EQ(difference(run(options, each, 6), expected), "") << name_of(each);
      }
    }
  }
}

TEST(LocalUpdatesRuns, HaveThemWithEveryOptimizer) {
  int stage = 0;
  for (const OptimizerType type : {OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
                                   OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon,
                                   OptimizerType::kAdafactor, OptimizerType::kDion}) {
    const auto options = options_of(kDelayed, type);
    const MeshCase each{.shards = 2, .replicas = 2, .stage = stage++ % 4};
    EXPECT_EQ(difference(run(options, each, 4), of_single_ranks(options, each, 4)), "")
        << name_of(each) << " " << static_cast<int>(type);
  }
}

TEST(LocalUpdatesRuns, HaveThemWithEveryOtherAxis) {
  model::ModelShape shape = cuttable_form("llama");
  shape.num_layers = 4;
  shape.seq_length = 8;
  engine::TrainingOptions options = tiny_training(shape, 0.05f);
  options.local_updates = kDelayed;
  for (const MeshCase& each : {MeshCase{.replicas = 2, .pipeline = 2, .stage = 3, .micro_steps = 2},
                               MeshCase{.shards = 2,
                               .replicas = 2,
                               .pipeline = 2,
                               .stage = 0,
                               .micro_steps = 2,
                               .order = schedule::Order::kZbV},
                               MeshCase{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3},
                               MeshCase{.context = 2, .replicas = 2, .stage = 0}}) {
    EXPECT_EQ(difference(run(options, each, 4),
                         of_single_ranks(options, each, 4,
                                         {.context = each.context, .tensor = each.tensor})),
              "")
        << name_of(each);
  }
}

// A tied matrix on two ranks of a pipeline, both of which exchange it.
TEST(LocalUpdatesRuns, HaveTheSameBitsAtEveryStageWithATiedMatrixAtBothEnds) {
  const engine::TrainingOptions options = options_of(kDelayed);
  MeshCase each{.replicas = 2, .pipeline = 2, .micro_steps = 2};
  const Outcome expected = run(options, each, 5);
  for (each.stage = 1; each.stage <= 3; ++each.stage) {
    EXPECT_EQ(difference(run(options, each, 5), expected), "") << name_of(each);
  }
}

TEST(LocalUpdatesRuns, WaitForWhatTheyReadHoweverLateItIs) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const LocalUpdates& local : {kPlain, kDelayed, kInt8, kInt4}) {
      const auto options = options_of(local, OptimizerType::kAdamW, DType::kBF16);
      RunShape setup{.world_size = 4, .axes = {{"replicate", 2}, {"shard", 2}}, .stage = stage};
      const Outcome expected = train(options, setup, 5);
      for (const char* late : {"gather", "reduce", "local updates"}) {
        setup.late_stream = late;
        EXPECT_EQ(difference(train(options, setup, 5), expected), "") << name_of(setup);
      }
      setup.late_stream.clear();
      setup.slow_stream = "local updates";
      EXPECT_EQ(difference(train(options, setup, 5), expected), "") << name_of(setup);
    }
  }
}

// Rounding apart, the mean of replicas that step once is what their mean gradient gives. A
// replica's gradient is the mean over its own tokens, which are equally many.
TEST(LocalUpdatesRuns, AfterEveryStepAtRateOneAreSynchronousSgd) {
  engine::TrainingOptions options =
      options_of({.sync_every = 1, .outer_lr = 1.0, .outer_momentum = 0.0}, OptimizerType::kSgd);
  options.max_norm = 0.0f;
  options.optimizer.momentum = 0.0f;
  options.lr_schedule.lr = 0.1;
  const MeshCase mesh{.shards = 2, .replicas = 2, .stage = 2};
  const Outcome apart = run(options, mesh, 6);
  options.local_updates = {};
  const Outcome together = run(options, mesh, 6);
  EXPECT_EQ(apart.losses[0], together.losses[0]) << "the mean over the same tokens";
  for (const auto& [name, values] : together.parameters) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(apart.parameters.at(name)[i], values[i], 2e-6) << name;
    }
  }
}

// Apart from rounding of changes that aren't exact in f32. (AdamW would make much of the rounding of
// gradients that are zero, those of key biases.)
TEST(LocalUpdatesRuns, OfOneReplicaAtRateOneAreAnOrdinaryTraining) {
  engine::TrainingOptions options = options_of({}, OptimizerType::kSgd);
  const MeshCase mesh{.shards = 2, .stage = 2};
  const Outcome ordinary = run(options, mesh, 6);
  for (const std::int64_t every : {1, 2, 6}) {
    options.local_updates = {.sync_every = every, .outer_lr = 1.0, .outer_momentum = 0.0};
    const Outcome local = run(options, mesh, 6);
    for (const auto& [name, values] : ordinary.parameters) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(local.parameters.at(name)[i], values[i], 1e-6) << name << " " << every;
      }
    }
  }
}

// Replica 0 has half of the rows; it trains on them as a world of its own, which has no others.
TEST(LocalUpdatesRuns, WithAlphaOneAreTrainingsOnTheirOwn) {
  engine::TrainingOptions options = options_of({.sync_every = 2, .fragment_update_alpha = 1.0});
  options.model.dropout = 0.0;
  const Outcome apart = run(options, {.shards = 2, .replicas = 2, .stage = 1}, 5);
  options.local_updates = {};
  const Outcome alone = run(options, {.shards = 2, .stage = 1}, 5);
  EXPECT_EQ(apart.parameters, alone.parameters);
  for (std::size_t i = 0; i < alone.grad_norms.size(); ++i) {
    EXPECT_GE(apart.grad_norms[i], alone.grad_norms[i]) << "the largest of the replicas'";
  }
}

// Each step as planned, and with an exchange what that sends.
void expect_sent_as_planned(engine::TrainingOptions options, const RunShape& setup) {
  options = applied(std::move(options), setup);
  run_counted(options, setup, [&](const CountedTraining& training) {
    auto& [rank, training_step, next_batch, counts] = training;
    counts.clear();
    Counts expected;
    const auto add = [&](const Counts& more) {
      for (const auto& [key, count] : more) {
        expected[key].calls += count.calls;
        expected[key].bytes += count.bytes;
      }
    };
    const auto round = static_cast<int>(options.local_updates.sync_every);
    for (int step = 0; step < round; ++step) {
      training_step.run(step, next_batch);
      add(planned(options, rank.mesh, rank.rank));
    }
    training_step.settle();
    for (int f = 0; f < options.local_updates.num_fragments; ++f) {
      const sharding::Traffic traffic =
          engine::TrainingStep::exchange_traffic(options, rank.mesh, rank.rank, f);
      for (const sharding::Sent& sent : traffic.sent()) {
        add({{{std::string(sharding::name_of(sent.collective)),
               std::string(sherd::name_of(sent.dtype))},
              {sent.calls, sent.bytes}}});
      }
    }
    EXPECT_EQ(counts, expected) << name_of(setup) << ", rank " << rank.rank << "\nsent\n"
                                << text_of(counts) << "planned\n"
                                << text_of(expected);
  });
}

TEST(LocalUpdatesRuns, SendWhatIsPlannedToTheByte) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const LocalUpdates& local : {kPlain, kDelayed, kInt8, kInt4}) {
      for (const int replicas : {1, 2, 3}) {
        expect_sent_as_planned(
            options_of(local, OptimizerType::kAdamW, stage == 3 ? DType::kBF16 : DType::kF32),
            {.world_size = 2 * replicas,
             .axes = {{"replicate", replicas}, {"shard", 2}},
             .stage = stage});
      }
    }
  }
}

// Per replica and slice 2 (W - 1) / W of 4 bytes an element, in a round: nothing else crosses.
TEST(LocalUpdatesRuns, CrossTheReplicateAxisOnceARound) {
  engine::TrainingOptions options = options_of(kDelayed);
  const RunShape setup{.world_size = 8, .axes = {{"replicate", 4}, {"shard", 2}}, .stage = 2};
  options = applied(std::move(options), setup);
  const sharding::Mesh mesh = mesh_of(setup);
  std::int64_t numel = 0;
  for (const auto& unit : engine::sharding_plan(options, mesh, 0).units) {
    numel += unit.layout.slice_numel();
  }
  std::int64_t sent = 0;
  for (int f = 0; f < 2; ++f) {
    sent += engine::TrainingStep::exchange_traffic(options, mesh, 0, f).total_bytes();
  }
  EXPECT_EQ(sent, 2 * 3 * numel / 4 * 4);
  const sharding::Traffic of_step =
      engine::TrainingStep::traffic(options, mesh, 0, DeviceKind::kCpu);
  for (const sharding::Sent& each : of_step.sent()) {
    EXPECT_EQ(each.callers.axes.contains("replicate"), each.label == "step stats") << each.label;
  }
}

}  // namespace
}  // namespace sherd::testing
