#include "optim/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/sharding/sharding_support.h"

namespace sherd::optim {
namespace {

using sharding::GradSync;
using sharding::Rank;
using sharding::UnitState;

float gradient(std::uint64_t parameter, std::int64_t i) {
  return test::number(parameter, static_cast<std::uint64_t>(i), 5);
}

// Writes the whole gradient where it is held whole, so that a rank that added more than its own
// slices would be seen.
void set_gradients(const UnitState& unit, int rank) {
  for (int slice_index = 0; slice_index < unit.layout().num_slices(); ++slice_index) {
    if (unit.placement().gradients_sharded() && slice_index != rank) continue;
    auto* slice = unit.gradient(slice_index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const std::uint32_t parameter = unit.spec().parameters[piece.parameter].index;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        slice[piece.position + i] = gradient(parameter, piece.first_element + i);
      }
    }
  }
}

// The sum of all ranks' sums.
double sum_of_world(int stage, int world, int num_threads = 1) {
  ExactSum sum;
  for (int r = 0; r < world; ++r) {
    Rank rank = test::lone_rank(r, world);
    StreamOptions options;
    options.num_threads = num_threads;
    rank.compute_stream = make_cpu_compute_stream(std::move(options));
    const auto units =
        test::make_units(test::small_units(3, /*tied=*/false),
                         sharding::placement_of(stage, GradSync::kEveryMicroStep), rank);
    for (const UnitState& unit : units) set_gradients(unit, r);
    sum.add(GradientNorm(rank, units).local_sum_of_squares());
  }
  return sum.value();
}

TEST(GradientNorm, IsTheSumOfSquaresOfEveryElementOnceAtEveryStageAndWorld) {
  double expected = 0.0;
  for (const UnitSpec& unit : test::small_units(3, false)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        const double g = gradient(parameter.index, i);
        expected += g * g;
      }
    }
  }
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 5; ++world) {
      // A thousand f64 additions in the expected one: 1e3 x 2^-53.
      EXPECT_NEAR(sum_of_world(stage, world), expected, 1e-12 * expected)
          << "stage " << stage << " world " << world;
    }
  }
}

TEST(GradientNorm, HasTheSameBitsAtEveryStageInEveryWorldAndOnAnyNumberOfThreads) {
  const double expected = sum_of_world(0, 1);
  for (const int world : {1, 2, 3, 5}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int threads : {1, 2, 4}) EXPECT_EQ(sum_of_world(stage, world, threads), expected);
    }
  }
}

TEST(GradientNorm, IsNotFiniteIfAnyGradientIsNot) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Rank rank = test::lone_rank(0, 1);
    rank.compute_stream = make_cpu_compute_stream({});
    const auto units =
        test::make_units(test::small_units(1, false), sharding::placement_of(0), rank);
    GradientNorm norm(rank, units);
    EXPECT_EQ(norm.local_sum_of_squares().value(), 0.0);
    units[1].gradient(0).as<float>()[3] = bad;
    EXPECT_FALSE(std::isfinite(norm.local_sum_of_squares().value()));
  }
}

TEST(ClipScale, BringsTheNormUnderTheLimitAndLeavesSmallOnesAlone) {
  EXPECT_EQ(clip_scale(2.0f, 1.0f), 0.5f);
  EXPECT_EQ(clip_scale(8.0f, 2.0f), 0.25f);
  EXPECT_EQ(clip_scale(1.0f, 1.0f), 1.0f);
  EXPECT_EQ(clip_scale(0.5f, 1.0f), 1.0f);
  EXPECT_EQ(clip_scale(0.0f, 1.0f), 1.0f);
}

TEST(ClipScale, IsOneWithoutALimit) {
  EXPECT_EQ(clip_scale(1e30f, 0.0f), 1.0f);
}

}  // namespace
}  // namespace sherd::optim
