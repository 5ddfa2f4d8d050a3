// Every optimizer at every stage and world against one rank's whole tensors in double precision.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/optim/optimizer_runs.h"
#include "tests/support/runs/whole_tensor_optimizer.h"

namespace sherd::optim {
namespace {

using oracle::WholeTensorOptimizer;
using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

constexpr int kSteps = 50;
// Parameters begin in [-1, 1) and move by up to about 1. Gradients don't depend on parameters, so
// errors add up over the steps but don't grow: each step rounds the parameter (2^-24 of it) and the
// update of about 0.02, which errs by some 10 * 2^-24 of itself: 50 * (2 * 6e-8 + 0.02 * 6e-7) is
// 6.6e-6 if all were of one sign. LARS's momentum repeats an error some ten times. Muon's five
// steps multiply the rounding of a matrix's small singular values by up to 3.4445^5 = 485, those of
// Polar Express by up to 990.
// Roundings are of both signs: the largest deviation that we saw is 2e-6 (lars), muon's is 1e-6.
constexpr double kTolerance = 1e-5;
// Lion jumps where its direction is 0. In f32 the moment errs by at most about 1.2 * 2^-24 in each
// step, which beta2 = 0.98 sums to 2.3e-6: an element that ever came nearer isn't compared.
constexpr double kSignMargin = 3e-6;
constexpr int kMostWithoutSign = 10;  // of 2682

struct Case {
  const char* name;
  OptimizerType type;
  float lr = 0.02f;
  float momentum = 0.0f;
  MuonCoefficients muon_coefficients = MuonCoefficients::kJordan;
};

const Case kCases[] = {
    {"adamw", OptimizerType::kAdamW},
    {"adam", OptimizerType::kAdam},
    {"sgd", OptimizerType::kSgd},
    {"sgd_with_momentum", OptimizerType::kSgd, 0.02f, 0.9f},
    {"lion", OptimizerType::kLion},
    {"lamb", OptimizerType::kLamb},
    {"lars", OptimizerType::kLars, 1.0f, 0.9f},
    {"muon", OptimizerType::kMuon, 0.02f, 0.95f},
    {"muon_polar_express", OptimizerType::kMuon, 0.02f, 0.95f, MuonCoefficients::kPolarExpress},
    {"adafactor", OptimizerType::kAdafactor, 0.1f},
    {"dion", OptimizerType::kDion, 0.02f, 0.95f},
};

OptimizerOptions options_of(const Case& c) {
  OptimizerOptions options;
  options.type = c.type;
  options.beta2 = 0.98f;
  options.momentum = c.momentum;
  options.muon_coefficients = c.muon_coefficients;
  options.trust_coefficient = 0.02f;
  options.adamw_lr_ratio = 0.5f;
  options.decay.rate = 0.1f;
  return options;
}

WholeTensorOptimizer whole_tensors_after_fifty_steps(const Case& c) {
  WholeTensorOptimizer whole(options_of(c), straddling_units(), initial_value);
  for (int t = 1; t <= kSteps; ++t) {
    whole.step(update_step(c.lr, t), [t](std::uint32_t parameter, std::int64_t element) {
      return static_cast<double>(gradient_value(t, parameter, element));
    });
  }
  return whole;
}

struct Deviation {
  double largest = 0.0;
  std::string where;
  bool padding_is_zero = true;
};

void compare(const UnitState& unit, const WholeTensorOptimizer& whole, Deviation& deviation) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    std::vector<bool> padding(static_cast<std::size_t>(slice.numel), true);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::int64_t element = piece.first_element + i;
        padding[static_cast<std::size_t>(piece.position + i)] = false;
        const double expected = whole.parameter(parameter.index)[static_cast<std::size_t>(element)];
        const double actual = slice.as<float>()[piece.position + i];
        const double error = std::isfinite(actual) ? std::abs(actual - expected) : HUGE_VAL;
        if (error <= deviation.largest) continue;
        deviation.largest = error;
        deviation.where = fmt::format("{}[{}] on slice {}: {:.9g}, expected {:.9g}", parameter.name,
                                      element, slice_index, actual, expected);
      }
    }
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      if (padding[static_cast<std::size_t>(i)]) {
        deviation.padding_is_zero &= slice.as<float>()[i] == 0.0f;
      }
    }
  }
}

std::vector<Deviation> deviations_after_fifty_steps(const Case& c, const RunShape& shape,
                                                    const WholeTensorOptimizer& whole) {
  std::vector<Deviation> deviations(static_cast<std::size_t>(shape.world_size));
  sherd::testing::run_ranks(shape, [&](Rank& rank) {
    const auto units = test::make_units(
        straddling_units(),
        sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep), rank);
    for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
    const auto optimizer = make_optimizer(options_of(c), rank, units);
    rank.guard([&] {
      for (int t = 1; t <= kSteps; ++t) {
        for (const UnitState& unit : units) {
          fill_gradients(unit, [t](std::uint32_t parameter, std::int64_t element) {
            return gradient_value(t, parameter, element);
          });
        }
        take_step(rank.compute(), *optimizer, units, update_step(c.lr, t));
      }
      for (const UnitState& unit : units) {
        compare(unit, whole, deviations[static_cast<std::size_t>(rank.rank)]);
      }
    });
  });
  return deviations;
}

class OptimizerOracle : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerOracle, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OptimizerOracle, EqualsOneRanksWholeTensorsAtEveryStageAndWorld) {
  const WholeTensorOptimizer whole = whole_tensors_after_fifty_steps(GetParam());
  double largest = 0.0;
  for (const RunShape& shape : stages_and_worlds()) {
    for (const Deviation& deviation : deviations_after_fifty_steps(GetParam(), shape, whole)) {
      EXPECT_LE(deviation.largest, kTolerance)
          << sherd::testing::name_of(shape) << ": " << deviation.where;
      EXPECT_TRUE(deviation.padding_is_zero) << sherd::testing::name_of(shape);
      largest = std::max(largest, deviation.largest);
    }
  }
  RecordProperty("largest_deviation", fmt::format("{:.3g}", largest));
}

TEST_P(OptimizerOracle, ComparesNearlyAllElements) {
  const WholeTensorOptimizer whole = whole_tensors_after_fifty_steps(GetParam());
  int without_sign = 0;
  for (const UnitSpec& unit : straddling_units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        without_sign += whole.smallest_direction(parameter.index, i) < kSignMargin ? 1 : 0;
      }
    }
  }
  EXPECT_LE(without_sign, GetParam().type == OptimizerType::kLion ? kMostWithoutSign : 0);
}

// The comparison above would be worth little if parameters hardly moved.
TEST_P(OptimizerOracle, MovesParametersByThousandsOfTheTolerance) {
  const WholeTensorOptimizer whole = whole_tensors_after_fifty_steps(GetParam());
  for (const UnitSpec& unit : straddling_units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        const double moved = whole.parameter(parameter.index)[static_cast<std::size_t>(i)] -
                             static_cast<double>(initial_value(parameter.index, i));
        squares += moved * moved;
      }
      EXPECT_GT(std::sqrt(squares / static_cast<double>(parameter.numel())), 3000 * kTolerance)
          << parameter.name;
    }
  }
}

}  // namespace
}  // namespace sherd::optim
