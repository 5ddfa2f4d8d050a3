#include "sharding/zero/unit.h"

#include <gtest/gtest.h>

#include "kernels/block_codec.h"
#include "optim/optimizer.h"
#include "tests/sharding/sharding_support.h"

namespace sherd::sharding {
namespace {

// FACTS §1, bytes per parameter with Adam: whole + sharded / N.
struct Sum {
  std::int64_t whole, sharded;
};
struct StateSums {
  const char* name;
  Precision precision;
  Sum stages[4];
};
const StateSums kSums[] = {
    {"f32", {}, {{16, 0}, {8, 8}, {4, 12}, {0, 16}}},
    {"bf16 parameters, f32 gradients",
     {DType::kBF16, DType::kF32, DType::kF32},
     {{18, 0}, {6, 12}, {2, 16}, {0, 16}}},
    {"f16 parameters, f32 gradients",
     {DType::kF16, DType::kF32, DType::kF32},
     {{18, 0}, {6, 12}, {2, 16}, {0, 16}}},
    {"bf16 parameters and gradients",
     {DType::kBF16, DType::kBF16, DType::kBF16},
     {{16, 0}, {4, 12}, {2, 14}, {0, 14}}},
    {"f16 parameters and gradients",
     {DType::kF16, DType::kF16, DType::kF16},
     {{16, 0}, {4, 12}, {2, 14}, {0, 14}}},
    // In blocks: a rounded copy, as in 16 bits.
    {"f32 gathered in blocks",
     {.gather_blocks = kernels::BlockFormat::kInt8},
     {{20, 0}, {8, 12}, {4, 16}, {0, 16}}},
    {"bf16 in blocks",
     {.parameters = DType::kBF16,
      .gather_blocks = kernels::BlockFormat::kInt4,
      .reduce_blocks = kernels::BlockFormat::kInt8},
     {{18, 0}, {6, 12}, {2, 16}, {0, 16}}},
};

std::int64_t measured_state_bytes(const Rank& rank) {
  const BytesByCategory bytes = rank.memory->current();
  std::int64_t total = 0;
  for (const Category category :
       {Category::kParameters, Category::kMaster, Category::kGradients, Category::kOptimizer}) {
    total += bytes[static_cast<std::size_t>(category)];
  }
  EXPECT_EQ(total, rank.memory->current_bytes()) << "units and optimizer hold something else";
  return total;
}

// To the byte, of padded parameters; embedding and head are sharded like the blocks.
TEST(UnitState, BytesPerRankAreThePaperSumsAtEveryStageInWorldsOneToEight) {
  const std::vector<UnitSpec> specs = test::small_units(3, /*tied=*/false);
  for (const StateSums& sums : kSums) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (int world = 1; world <= 8; ++world) {
        std::int64_t padded = 0;
        for (const UnitSpec& spec : specs) padded += test::padded_numel(spec, world);
        for (int r = 0; r < world; ++r) {
          const Rank rank = test::lone_rank(r, world);
          const auto units = test::make_units(specs, placement_of(stage, GradSync::kEveryMicroStep),
                                              rank, sums.precision);
          const auto adamw = optim::make_optimizer({}, rank, units);
          const Sum& sum = sums.stages[stage];
          EXPECT_EQ(measured_state_bytes(rank), sum.whole * padded + sum.sharded * padded / world)
              << sums.name << ", stage " << stage << ", rank " << r << " of " << world;
        }
      }
    }
  }
}

// R replicas of S ranks: what is the ZeRO group's takes 1 / S, what is the optimizer's 1 / RS.
TEST(UnitState, ReplicasThatDivideTheOptimizerHoldItsStateOnce) {
  struct Shares {
    std::int64_t whole, group, all;
  };
  struct Divided {
    Precision precision;
    Shares stages[3];
  };
  const Divided sums[] = {
      {{}, {{8, 0, 8}, {4, 4, 8}, {0, 8, 8}}},
      {{DType::kBF16, DType::kF32, DType::kF32}, {{6, 0, 12}, {2, 4, 12}, {0, 6, 12}}},
      {{DType::kF16, DType::kF16, DType::kF16}, {{4, 0, 12}, {2, 2, 12}, {0, 4, 12}}}};
  for (const Divided& each : sums) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const int shards : {1, 2, 3}) {
        for (int r = 0; r < 2 * shards; ++r) {
          Rank rank = test::lone_rank(r, 2 * shards);
          rank.mesh = Mesh({{"replicate", 2}, {"shard", shards}});
          std::int64_t padded = 0;
          const std::vector<UnitSpec> specs = test::small_units(3, /*tied=*/false);
          for (const UnitSpec& spec : specs) padded += test::padded_numel(spec, 2 * shards);
          const auto units = test::make_units(
              specs, placement_of(stage, GradSync::kEveryMicroStep, Replicas::kDivideOptimizer),
              rank, each.precision);
          const auto adamw = optim::make_optimizer({}, rank, units);
          const Shares& sum = each.stages[stage - 1];
          EXPECT_EQ(measured_state_bytes(rank), sum.whole * padded + sum.group * padded / shards +
                                                    sum.all * padded / (2 * shards))
              << "stage " << stage << ", rank " << r << " of 2 x " << shards;
        }
      }
    }
  }
}

// A tensor's padding is below 64 elements, a unit's below 64 per rank.
TEST(UnitState, PaddingIsSmallAndBounded) {
  for (const UnitSpec& spec : test::small_units(3, false)) {
    std::int64_t numel = 0;
    for (const ParameterSpec& parameter : spec.parameters) numel += parameter.numel();
    for (int world = 1; world <= 8; ++world) {
      const Rank rank = test::lone_rank(0, world);
      const UnitState unit({spec, placement_of(3), {}, rank.mesh}, rank);
      const auto tensors = static_cast<std::int64_t>(spec.parameters.size());
      EXPECT_EQ(unit.layout().numel(), test::padded_numel(spec, world));
      EXPECT_LT(unit.layout().numel() - numel, 64 * tensors + 64 * world);
    }
  }
}

// Kept until the boundary, gradients cost at stages 2-3 what they cost at stage 1.
TEST(UnitState, GradientsKeptUntilTheBoundaryAreWhole) {
  const UnitSpec spec = test::small_units(1, false)[1];
  for (const int stage : {2, 3}) {
    const Rank rank = test::lone_rank(1, 4);
    const UnitState unit({spec, placement_of(stage, GradSync::kBoundary), {}, rank.mesh}, rank);
    EXPECT_EQ(unit.gradients().numel, unit.layout().numel());
    EXPECT_EQ(unit.gradient(3).data, unit.layout().slice(unit.gradients(), 3).data);
  }
}

TEST(UnitState, StageZeroUpdatesEverySliceTheOthersTheirOwn) {
  const UnitSpec spec = test::small_units(1, false)[1];
  for (int stage = 0; stage <= 3; ++stage) {
    const Rank rank = test::lone_rank(1, 3);
    const UnitState unit({spec, placement_of(stage), {}, rank.mesh}, rank);
    EXPECT_EQ(unit.updated_slices(),
              stage == 0 ? (std::vector<int>{0, 1, 2}) : std::vector<int>{1});
  }
}

TEST(UnitState, TheF32SliceIsAViewOfTheResidentParameters) {
  const UnitSpec spec = test::small_units(1, false)[1];
  for (int stage = 0; stage <= 2; ++stage) {
    const Rank rank = test::lone_rank(2, 3);
    const UnitState unit({spec, placement_of(stage), {}, rank.mesh}, rank);
    for (const int slice_index : unit.updated_slices()) {
      EXPECT_EQ(unit.fp32_slice(slice_index).data,
                unit.layout().slice(unit.resident_parameters(), slice_index).data);
    }
  }
}

TEST(UnitState, StageThreeHoldsNoResidentParameters) {
  const UnitSpec spec = test::small_units(1, false)[1];
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Rank rank = test::lone_rank(0, 2);
    const UnitState unit({spec, placement_of(3), {dtype, DType::kF32, DType::kF32}, rank.mesh},
                         rank);
    EXPECT_FALSE(unit.resident_parameters());
    EXPECT_EQ(unit.fp32_slice(0).numel, unit.layout().slice_numel());
    EXPECT_EQ(unit.fp32_slice(0).dtype, DType::kF32);
  }
}

TEST(UnitState, ASlicesRoundedParametersAreItsPlaceInWhatIsResident) {
  const UnitSpec spec = test::small_units(1, false)[1];
  for (int stage = 0; stage <= 2; ++stage) {
    const Rank rank = test::lone_rank(1, 2);
    const UnitState rounds(
        {spec, placement_of(stage), {DType::kBF16, DType::kF32, DType::kF32}, rank.mesh}, rank);
    for (const int slice_index : rounds.updated_slices()) {
      const Tensor rounded = rounds.rounded_slice(slice_index);
      const Tensor slice = rounds.layout().slice(rounds.resident_parameters(), slice_index);
      EXPECT_EQ(rounded.data, slice.data);
      EXPECT_EQ(rounded.numel, slice.numel);
      EXPECT_EQ(rounded.dtype, DType::kBF16);
    }
    const UnitState alike({spec, placement_of(stage), {}, rank.mesh}, rank);
    EXPECT_FALSE(alike.rounded_slice(1)) << "what is resident is the FP32 parameters";
  }
  const Rank rank = test::lone_rank(0, 2);
  const UnitState gathered(
      {spec, placement_of(3), {DType::kBF16, DType::kF32, DType::kF32}, rank.mesh}, rank);
  EXPECT_FALSE(gathered.rounded_slice(0)) << "nothing is resident";
}

TEST(UnitStateDeathTest, AnotherRanksSliceIsNotThereToBeAskedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Rank rank = test::lone_rank(0, 2);
  const UnitState unit({test::small_units(1, false)[1], placement_of(3), {}, rank.mesh}, rank);
  EXPECT_DEATH(unit.fp32_slice(1), "the holder of slice 0 asked for slice 1 of block.0");
  EXPECT_DEATH(unit.gradient(1), "the holder of slice 0 asked for gradient 1 of block.0");
}

}  // namespace
}  // namespace sherd::sharding
