// What a rank's tensors take, against sums that this test does itself from the parameter table:
// FACTS §1's bytes of state per parameter, and the slots that stage 3 works in.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model/parameters.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kF32 = 4;

// A unit's elements with padding: parameters at multiples of 64, the whole a multiple of 64 *
// world.
struct PaddedUnit {
  UnitClass unit_class;
  std::int64_t numel;
};
std::vector<PaddedUnit> padded_units(const model::ModelShape& shape, int world) {
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  std::vector<PaddedUnit> units;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    std::int64_t numel = 0;
    for (const ParameterSpec& parameter : unit.parameters) numel += up(parameter.numel(), 64);
    units.push_back({unit.unit_class, up(numel, 64 * world)});
  }
  return units;
}

std::int64_t padded_parameters(const model::ModelShape& shape, int world) {
  std::int64_t numel = 0;
  for (const PaddedUnit& unit : padded_units(shape, world)) numel += unit.numel;
  return numel;
}
std::int64_t largest(const model::ModelShape& shape, int world, UnitClass unit_class) {
  std::int64_t numel = 0;
  for (const PaddedUnit& unit : padded_units(shape, world)) {
    if (unit.unit_class == unit_class) numel = std::max(numel, unit.numel);
  }
  return numel;
}

struct Measured {
  BytesByCategory peak_by_category{};
  std::int64_t peak = 0;
  std::int64_t of(Category category) const {
    return peak_by_category[static_cast<std::size_t>(category)];
  }
  std::int64_t state() const {
    return of(Category::kParameters) + of(Category::kMaster) + of(Category::kGradients) +
           of(Category::kOptimizer);
  }
};

// Every rank's peaks after `num_steps` steps, which must be the same on all.
Measured measure(const model::ModelShape& shape, const RunShape& setup, int num_steps) {
  const engine::TrainingOptions options = applied(tiny_training(shape), setup);
  std::vector<Measured> ranks(static_cast<std::size_t>(setup.world_size));
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (int step = 0; step < num_steps; ++step) training_step.run(step, next_batch);
    });
    ranks[rank.rank] = {rank.memory->peak_by_category(), rank.memory->peak_bytes()};
  });
  for (const Measured& rank : ranks) EXPECT_EQ(rank.peak, ranks[0].peak) << name_of(setup);
  return ranks[0];
}

model::ModelShape deep_model() {
  model::ModelShape shape = tiny_model(false);
  shape.num_layers = 8;
  return shape;
}

// FACTS §1, f32 and Adam: 16 / 8 + 8/N / 4 + 12/N / 16/N bytes per parameter, with N = W.
TEST(Memory, OfTheStateIsTheZeroPapersSumAtEveryStageAndWorld) {
  const model::ModelShape shape = tiny_model(true);
  for (int world = 1; world <= 8; ++world) {
    const std::int64_t numel = padded_parameters(shape, world);
    ASSERT_EQ(numel % world, 0);
    const std::int64_t slice = numel / world;
    const std::int64_t expected[] = {16 * numel, 8 * numel + 8 * slice, 4 * numel + 12 * slice,
                                     16 * slice};
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape setup{.world_size = world, .stage = stage};
      EXPECT_EQ(measure(shape, setup, 0).state(), expected[stage]) << name_of(setup);
    }
  }
}

// Slots of stage 3: prefetch_depth + 1 gathered blocks and one edge; two blocks and an edge of
// gradients on their way to be reduced. Stage 0 with one micro-step needs none.
TEST(Memory, PeakOfTwoRanksAtStage3IsBelowStage0ByThePredictedDifference) {
  const model::ModelShape shape = deep_model();
  const std::int64_t numel = padded_parameters(shape, 2);
  const std::int64_t block = largest(shape, 2, UnitClass::kBlock);
  const std::int64_t edge = largest(shape, 2, UnitClass::kEdge);
  const Measured stage0 = measure(shape, {.world_size = 2, .stage = 0}, 2);
  for (const int depth : {0, 1, 3}) {
    const Measured stage3 =
        measure(shape, {.world_size = 2, .stage = 3, .prefetch_depth = depth}, 2);
    const std::int64_t state_saved = 4 * kF32 * (numel - numel / 2);
    const std::int64_t gathered = kF32 * ((depth + 1) * block + edge);
    const std::int64_t unreduced = kF32 * (2 * block + edge);
    EXPECT_EQ(stage0.peak - stage3.peak, state_saved - gathered - unreduced) << "depth " << depth;
    EXPECT_EQ(stage3.of(Category::kGatheredParameters), gathered) << "depth " << depth;
    EXPECT_EQ(stage3.of(Category::kUnreducedGradients), unreduced) << "depth " << depth;
    EXPECT_LT(stage3.peak, stage0.peak) << "depth " << depth;
  }
}

// With several micro-steps stage 0 adds from a slot of each class to its accumulator; at stage 3 the reduction
// adds to the slice itself.
TEST(Memory, PeakWithAccumulationDiffersByThePredictedSlotsToo) {
  const model::ModelShape shape = deep_model();
  const std::int64_t numel = padded_parameters(shape, 2);
  const std::int64_t block = largest(shape, 2, UnitClass::kBlock);
  const std::int64_t edge = largest(shape, 2, UnitClass::kEdge);
  const Measured stage0 = measure(shape,
                                  {.world_size = 2,
                                   .num_micro_steps = 2,
                                   .stage = 0,
                                   .grad_sync = sharding::GradSync::kBoundary},
                                  2);
  const Measured stage3 = measure(shape, {.world_size = 2, .num_micro_steps = 2, .stage = 3}, 2);
  const std::int64_t slots0 = block + edge;
  const std::int64_t slots3 = (2 * block + edge) + (2 * block + edge);
  EXPECT_EQ(stage0.peak - stage3.peak, kF32 * (4 * (numel - numel / 2) + slots0 - slots3));
}

TEST(Memory, IsAllAcquiredBeforeTheFirstStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape setup{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    EXPECT_EQ(measure(deep_model(), setup, 0).peak, measure(deep_model(), setup, 3).peak)
        << name_of(setup);
  }
}

}  // namespace
}  // namespace sherd::testing
