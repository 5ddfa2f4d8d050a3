// Ranks that own state for others (sharding/zero/owner_exchange.h): a step has the bits that it has
// without owners. Memory and traffic are as planned. Late publishing has the bits of a sequential
// program.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/train/layout/sharding_plan.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/support/random/pairwise.h"
#include "tests/support/runs/counted_training.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;

constexpr int kSteps = 3;

struct Types {
  const char* name;
  sharding::Precision precision;
};
const Types kOwnersTypes[] = {{"f32", {}},
                              {"bf16", {DType::kBF16, DType::kF32, DType::kF32}},
                              {"f16", {DType::kF16, DType::kF32, DType::kF32}},
                              {"bf16 throughout", {DType::kBF16, DType::kBF16, DType::kBF16}}};
constexpr OptimizerType kOwnersOptimizers[] = {
    OptimizerType::kAdamW, OptimizerType::kAdam,      OptimizerType::kSgd,
    OptimizerType::kLion,  OptimizerType::kLamb,      OptimizerType::kLars,
    OptimizerType::kMuon,  OptimizerType::kAdafactor, OptimizerType::kDion};

engine::TrainingOptions training(const Types& types, OptimizerType optimizer, bool clips,
                                 bool tied) {
  engine::TrainingOptions options = tiny_training(tiny_model(tied), clips ? 0.05f : 0.0f);
  options.precision = types.precision;
  options.model.dtype = types.precision.parameters;
  options.optimizer.type = optimizer;
  options.optimizer.momentum = 0.9f;
  if (types.precision.parameters == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

/// A row of the grid: how a run is cut, and what it computes.
struct OwnersCase {
  int owners, workers, stage, types, optimizer, micro_steps, sync, clips, tied;

  static std::vector<int> sizes() { return {3, 4, 3, 4, 8, 2, 2, 2, 2}; }
  static OwnersCase of(const std::vector<int>& row) {
    return {row[0] + 1,     row[1] + 1, row[2] + 1, row[3], row[4],
            1 + 2 * row[5], row[6],     row[7],     row[8]};
  }
  engine::TrainingOptions options() const {
    return training(kOwnersTypes[types], kOwnersOptimizers[optimizer], clips != 0, tied != 0);
  }
  RunShape setup() const {
    return {.world_size = workers,
            .owners = owners,
            .num_micro_steps = micro_steps,
            .stage = stage,
            .grad_sync = sync == 0 ? GradSync::kEveryMicroStep : GradSync::kBoundary,
            .delay_seed = static_cast<std::uint64_t>(17 + owners + 5 * workers)};
  }
  std::string name() const {
    return fmt::format("{}, {}, optimizer {}{}{}", name_of(setup()), kOwnersTypes[types].name,
                       optimizer, clips ? ", clips" : "", tied ? ", tied" : "");
  }
};

// ZeRO-1 on the same workers, with the same sync.
Outcome without_owners(const OwnersCase& each) {
  RunShape without = each.setup();
  without.owners = 0;
  without.stage = 1;
  without.delay_seed = 0;
  return train(each.options(), without, kSteps);
}

void expect_bits(const OwnersCase& each, const Outcome& expected) {
  EXPECT_EQ(difference(train(each.options(), each.setup(), kSteps), expected), "") << each.name();
}

TEST(Owners, ChangeNoBitOfAStep) {
  for (const std::vector<int>& row : pairwise_cover(OwnersCase::sizes())) {
    const OwnersCase each = OwnersCase::of(row);
    expect_bits(each, without_owners(each));
  }
}

TEST(OwnersSlow, ChangeNoBitOfAStepInTheFullGrid) {
  std::map<std::vector<int>, Outcome> expected;  // by all but owners and stage
  for_full_matmul(OwnersCase::sizes(), [&](const std::vector<int>& row) {
    const OwnersCase each = OwnersCase::of(row);
    std::vector<int> key = row;
    key[0] = key[2] = 0;
    auto [at, is_new] = expected.try_emplace(key);
    if (is_new) at->second = without_owners(each);
    expect_bits(each, at->second);
  });
}

TEST(OwnersSmall, WaitForWhatTheyReadHoweverLateItIs) {
  const auto options = training(kOwnersTypes[1], OptimizerType::kAdamW, true, true);
  for (int stage = 1; stage <= 3; ++stage) {
    for (const bool late : {false, true}) {
      RunShape setup{.world_size = 2, .owners = 2, .publishes_late = late, .stage = stage};
      setup.num_micro_steps = 2;
      const Outcome expected = train(options, setup, 4);
      for (const char* stream : {"gather", "reduce"}) {
        setup.late_stream = stream;
        EXPECT_EQ(difference(train(options, setup, 4), expected), "")
            << name_of(setup) << (late ? ", published late" : "");
      }
    }
  }
}

// The first loss scale overflows: all ranks skip steps, and owners keep what they have.
engine::TrainingOptions overflowing() {
  auto options = training(kOwnersTypes[2], OptimizerType::kAdamW, false, true);
  options.loss_scaling.initial_scale_power = 21;
  return options;
}

TEST(Owners, SkipTheStepsThatOverflow) {
  const RunShape without{.world_size = 2, .stage = 1};
  const Outcome expected = train(overflowing(), without, 6);
  ASSERT_FALSE(std::isfinite(expected.grad_norms[0])) << "nothing has overflowed";
  ASSERT_TRUE(std::isfinite(expected.grad_norms[5])) << "nothing has been updated";
  for (int stage = 1; stage <= 3; ++stage) {
    const RunShape setup{.world_size = 2, .owners = stage, .stage = stage};
    EXPECT_EQ(difference(train(overflowing(), setup, 6), expected), "") << name_of(setup);
  }
}

// Bytes and calls of each kind of rank.
void expect_owners_sent_as_planned(engine::TrainingOptions options, const RunShape& setup) {
  options = applied(std::move(options), setup);
  run_counted(options, setup, [&](const CountedTraining& training) {
    auto& [rank, training_step, next_batch, counts] = training;
    training_step.run(0, next_batch);
    if (rank.rank == 0 || rank.mesh.is_owner(rank.rank)) {
      rank.gather().synchronize();
      rank.reduce().synchronize();
    }
    counts.clear();
    training_step.run(1, next_batch);
    rank.gather().synchronize();
    rank.reduce().synchronize();
    EXPECT_EQ(text_of(counts), text_of(planned(options, rank.mesh, rank.rank)))
        << name_of(setup) << " rank " << rank.rank;
  });
}

TEST(Owners, SendWhatIsPlanned) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const OptimizerType type : {OptimizerType::kLamb, OptimizerType::kMuon}) {
      const auto options = training(kOwnersTypes[1], type, true, type == OptimizerType::kLamb);
      expect_owners_sent_as_planned(options, {.world_size = 3,
                                              .owners = 2,
                                              .publishes_late = type == OptimizerType::kLamb,
                                              .num_micro_steps = 2,
                                              .stage = stage,
                                              .prefetch_depth = 0});
    }
  }
}

// docs/parameter_server.md: a worker pushes F elements per push, and owners publish F to each.
TEST(Owners, SendTheBytesOfTheirPage) {
  const auto options = training(kOwnersTypes[1], OptimizerType::kAdamW, false, true);
  const RunShape setup{.world_size = 3, .owners = 2, .stage = 1};
  const sharding::Mesh mesh = mesh_of(setup);
  const auto plan = engine::sharding_plan(applied(options, setup), mesh, 0);
  std::int64_t numel = 0;
  for (const sharding::UnitPlan& unit : plan.units) numel += unit.layout.numel();
  const auto bytes = [&](int rank, const std::string& label) {
    std::int64_t sum = 0;
    const auto traffic =
        engine::TrainingStep::traffic(applied(options, setup), mesh, rank, DeviceKind::kCpu);
    for (const sharding::Sent& sent : traffic.sent()) sum += sent.label == label ? sent.bytes : 0;
    return sum;
  };
  EXPECT_EQ(bytes(0, "gradients"), 4 * numel);
  EXPECT_EQ(bytes(0, "parameters"), 0);
  EXPECT_EQ(bytes(3, "gradients"), 0);
  EXPECT_EQ(bytes(3, "parameters"), 2 * numel / 2 * 3);
}

using Values = std::vector<std::vector<float>>;

Values values_of(const engine::ShardedModel& model) {
  Values values;
  for (const sharding::UnitState& unit : model.units()) {
    const Tensor slice = unit.fp32_slice(unit.own_slice());
    values.emplace_back(slice.as<float>(), slice.as<float>() + slice.numel);
  }
  return values;
}

void set_values(engine::ShardedModel& model, const Values& values, bool publishes) {
  for (std::size_t unit = 0; unit < values.size(); ++unit) {
    const sharding::UnitState& state = model.units()[unit];
    std::ranges::copy(values[unit], state.fp32_slice(state.own_slice()).as<float>());
    if (publishes) model.publish(static_cast<int>(unit));
  }
}

// One rank, whose parameters are exchanged between the gradient and the update.
Outcome late_reference(engine::TrainingOptions options, RunShape setup, int num_steps) {
  setup.stage = 1;
  options = applied(std::move(options), setup);
  Outcome outcome;
  outcome.parameters = empty_parameters(options.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      std::vector<Values> after = {values_of(model)};  // so many updates
      for (int step = 0; step < num_steps; ++step) {
        training_step.before_update = [&] { set_values(model, after[step], false); };
        set_values(model, after[std::max(step - 1, 0)], true);
        const engine::StepResult result = training_step.run(step, next_batch);
        after.push_back(result.skipped ? after.back() : values_of(model));
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
      }
      collect_parameters(model, outcome.parameters);
    });
  });
  return outcome;
}

TEST(Owners, ThatPublishLateHaveTheBitsOfASequentialProgram) {
  for (const auto& options :
       {training(kOwnersTypes[0], OptimizerType::kAdamW, true, true),
        training(kOwnersTypes[1], OptimizerType::kLamb, true, false), overflowing()}) {
    const RunShape one{.world_size = 1, .num_micro_steps = 4};
    const Outcome expected = late_reference(options, one, 6);
    RunShape setup{.publishes_late = true};
    const Outcome on_time = train(options, {.world_size = 1, .num_micro_steps = 4, .stage = 1}, 6);
    EXPECT_NE(difference(expected, on_time), "");
    for (setup.stage = 1; setup.stage <= 3; ++setup.stage) {
      for (const int workers : {1, 2, 4}) {
        setup.world_size = workers;
        setup.num_micro_steps = 4 / workers;
        setup.owners = setup.stage;
        setup.delay_seed = static_cast<std::uint64_t>(workers + setup.stage);
        EXPECT_EQ(difference(train(options, setup, 6), expected), "") << name_of(setup);
      }
    }
  }
}

// What each step computes with, from the losses alone: the first two have the initial weights.
TEST(Owners, ThatPublishLateComputeTwoStepsWithTheFirstParameters) {
  auto options = training(kOwnersTypes[0], OptimizerType::kSgd, false, true);
  options.model.dropout = 0.0;
  const RunShape setup{.world_size = 2, .owners = 1, .publishes_late = true, .stage = 2};
  RunShape frozen{.world_size = 2, .stage = 2};
  auto still = options;
  still.lr_schedule.lr = 0.0;
  still.optimizer.decay = {};
  const Outcome late = train(options, setup, 3), without = train(still, frozen, 3);
  EXPECT_EQ(late.losses[0], without.losses[0]);
  EXPECT_EQ(late.losses[1], without.losses[1]);
  EXPECT_NE(late.losses[2], without.losses[2]);
}

}  // namespace
}  // namespace sherd::testing
