// Averages of the weights: the recurrence, and that they are sharded, exchanged and restored exactly.
#include "optim/average.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/pointwise.h"
#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {
namespace {

using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

// The average of 1, 2, 3, 4 by decay 0.9 from 1 on: 1, 1.1, 1.29, 1.561.
TEST(AverageOptions, OfEmaAreItsRecurrence) {
  const AverageOptions options{.type = AverageType::kEma, .decay = 0.9};
  double average = 0.0;
  std::vector<double> averages;
  for (int t = 1; t <= 4; ++t) {
    average += static_cast<double>(*options.weight(t)) * (t - average);
    averages.push_back(average);
  }
  const double expected[] = {1.0, 1.1, 1.29, 1.561};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(averages[static_cast<std::size_t>(i)], expected[i], 1e-7);
}

// A decay of 0.999 has a half-life of 692.8 updates.
TEST(AverageOptions, OfEmaForgetHalfInTheHalfLife) {
  const AverageOptions options{.type = AverageType::kEma, .decay = 0.999};
  double left = 1.0;
  for (int t = 2; t <= 694; ++t) left *= 1.0 - static_cast<double>(*options.weight(t));
  EXPECT_NEAR(left, std::exp2(-693 / 692.8), 1e-5);
}

TEST(AverageOptions, OfMeanWeighAllUpdatesSinceTheStartAlike) {
  const AverageOptions options{.type = AverageType::kMean, .start_step = 10};
  double average = 0.0, sum = 0.0;
  for (int t = 1; t <= 30; ++t) {
    average += static_cast<double>(*options.weight(t)) * (t * t - average);
    if (t >= 11) sum += t * t;
    if (t > 11) continue;
    EXPECT_EQ(average, t * t) << "the weights themselves";
  }
  EXPECT_NEAR(average, sum / 20, 1e-4);
}

TEST(AverageOptions, AnIntervalLeavesOutTheUpdatesBetween) {
  const AverageOptions options{.type = AverageType::kMean, .start_step = 2, .interval = 3};
  std::vector<float> weights;
  for (int t = 1; t <= 10; ++t) weights.push_back(options.weight(t).value_or(0.0f));
  EXPECT_EQ(weights, (std::vector<float>{1, 1, 1, 0, 0, 0.5f, 0, 0, 1.0f / 3, 0}));
}

// Before anything has moved, and where the weights don't change, an average is the weights.
TEST(WeightAverage, OfWeightsThatStayAreTheWeightsBitForBit) {
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    sherd::testing::run_ranks(shape, [&](Rank& rank) {
      const auto units = test::make_units(
          straddling_units(),
          sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep), rank);
      for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
      WeightAverage average({.type = AverageType::kEma, .decay = 0.7}, {}, rank, units);
      rank.guard([&] {
        for (int t = 1; t <= 5; ++t) {
          for (std::size_t unit = 0; unit < units.size(); ++unit) {
            average.update(rank.compute(), static_cast<int>(unit), t);
          }
        }
        rank.compute().synchronize();
        for (const MomentPiece& piece : average.pieces()) {
          EXPECT_EQ(piece.kind, kAverageKind);
          for (std::int64_t i = 0; i < piece.data.numel; ++i) {
            ASSERT_EQ(piece.data.as<float>()[i],
                      initial_value(piece.parameter, piece.first_element + i));
          }
        }
      });
    });
  }
}

TEST(WeightAverage, IsExchangedWithTheWeightsAndBack) {
  sherd::testing::run_ranks({}, [&](Rank& rank) {
    const auto units = test::make_units(straddling_units(), sharding::placement_of(1), rank);
    for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
    WeightAverage average({.type = AverageType::kEma, .decay = 0.5}, {}, rank, units);
    const auto values = [&] {
      rank.compute().synchronize();
      std::vector<float> all;
      for (const UnitState& unit : units) {
        for (const int index : unit.updated_slices()) {
          const Tensor slice = unit.fp32_slice(index);
          all.insert(all.end(), slice.as<float>(), slice.as<float>() + slice.numel);
        }
      }
      return all;
    };
    const auto exchange = [&] {
      for (std::size_t unit = 0; unit < units.size(); ++unit) {
        average.exchange(rank.compute(), static_cast<int>(unit));
      }
    };
    rank.guard([&] {
      const std::vector<float> before = values();
      for (const UnitState& unit : units) {
        test::fill_slices(unit, [](std::uint64_t parameter, std::int64_t i) {
          return 2 * initial_value(static_cast<std::uint32_t>(parameter), i);
        });
      }
      const std::vector<float> doubled = values();
      exchange();
      EXPECT_EQ(values(), before) << "the average began there";
      exchange();
      EXPECT_EQ(values(), doubled);
    });
  });
}

}  // namespace
}  // namespace sherd::optim
