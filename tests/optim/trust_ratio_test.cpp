// LAMB's and LARS's trust ratios are those of whole tensors, although ranks hold slices of them.

#include <gtest/gtest.h>

#include <cmath>

#include "optim/layerwise_adaptive.h"
#include "tests/optim/optimizer_runs.h"
#include "tests/support/runs/whole_tensor_optimizer.h"

namespace sherd::optim {
namespace {

using oracle::ElementValue;
using oracle::WholeTensorOptimizer;
using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

constexpr int kTrustSteps = 5;
constexpr float kTrustLr = 0.05f;
// A norm is summed in f64, but of f32 elements and directions: they are off by some 2^-24, and
// after a few steps by some more of that.
constexpr double kRelativeTolerance = 2e-6;

using FloatValue = std::function<float(std::uint32_t parameter, std::int64_t element)>;
using GradientOfStep = std::function<float(int step, std::uint32_t, std::int64_t)>;

struct Problem {
  OptimizerOptions options;
  FloatValue initial = initial_value;
  GradientOfStep gradient = gradient_value;
};

OptimizerOptions options_of(OptimizerType type) {
  OptimizerOptions options;
  options.type = type;
  options.eps = 1e-6f;
  options.momentum = 0.9f;
  options.trust_coefficient = 0.02f;
  options.decay.rate = 0.1f;
  return options;
}

using RatiosOfSteps = std::vector<std::vector<float>>;

// By rank, then step, then parameter index.
std::vector<RatiosOfSteps> ratios_on_ranks(const Problem& problem, const RunShape& shape) {
  std::vector<RatiosOfSteps> ratios(static_cast<std::size_t>(shape.world_size));
  sherd::testing::run_ranks(shape, [&](Rank& rank) {
    const auto units = test::make_units(
        straddling_units(),
        sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep), rank);
    for (const UnitState& unit : units) test::fill_slices(unit, problem.initial);
    const auto optimizer = make_optimizer(problem.options, rank, units);
    const auto& adaptive = dynamic_cast<const LayerwiseAdaptive&>(*optimizer);
    rank.guard([&] {
      for (int t = 1; t <= kTrustSteps; ++t) {
        for (const UnitState& unit : units) {
          fill_gradients(unit, [&](std::uint32_t parameter, std::int64_t element) {
            return problem.gradient(t, parameter, element);
          });
        }
        take_step(rank.compute(), *optimizer, units, update_step(kTrustLr, t));
        ratios[static_cast<std::size_t>(rank.rank)].push_back(adaptive.ratios());
      }
    });
  });
  return ratios;
}

std::vector<oracle::Values> ratios_of_whole_tensors(const Problem& problem) {
  WholeTensorOptimizer whole(problem.options, straddling_units(), problem.initial);
  std::vector<oracle::Values> ratios;
  for (int t = 1; t <= kTrustSteps; ++t) {
    whole.step(update_step(kTrustLr, t), [&](std::uint32_t parameter, std::int64_t element) {
      return static_cast<double>(problem.gradient(t, parameter, element));
    });
    ratios.push_back(whole.ratios());
  }
  return ratios;
}

void expect_whole_tensors_ratios(const Problem& problem) {
  const std::vector<oracle::Values> expected = ratios_of_whole_tensors(problem);
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    const std::vector<RatiosOfSteps> ranks = ratios_on_ranks(problem, shape);
    for (const RatiosOfSteps& ratios : ranks) EXPECT_EQ(ratios, ranks[0]);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      const std::vector<float>& ratios = ranks[0][step];
      ASSERT_EQ(ratios.size(), expected[step].size());
      for (std::size_t p = 0; p < ratios.size(); ++p) {
        EXPECT_NEAR(ratios[p], expected[step][p], kRelativeTolerance * expected[step][p])
            << "step " << step + 1 << ", parameter " << p;
      }
    }
  }
}

class TrustRatio : public ::testing::TestWithParam<OptimizerType> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, TrustRatio,
                         ::testing::Values(OptimizerType::kLamb, OptimizerType::kLars),
                         [](const auto& info) {
                           return std::string(info.param == OptimizerType::kLamb ? "lamb" : "lars");
                         });

// What the other tests count on: the number of ranks on which each parameter lies.
TEST(TrustRatioUnits, StraddleTwoAndThreeRanks) {
  const std::vector<UnitSpec> units = straddling_units();
  const auto counts = [&](std::size_t unit, int world) {
    return slices_of_parameters(sharding::FlatLayout(units[unit], world),
                                units[unit].parameters.size());
  };
  // token, norm
  EXPECT_EQ(counts(0, 2), (std::vector{2, 1}));
  EXPECT_EQ(counts(0, 3), (std::vector{3, 1}));
  EXPECT_EQ(counts(0, 4), (std::vector{4, 1}));
  // norm, qkv, qkv_bias, up, down
  EXPECT_EQ(counts(1, 2), (std::vector{1, 1, 1, 2, 1}));
  EXPECT_EQ(counts(1, 3), (std::vector{1, 1, 1, 2, 1}));
  EXPECT_EQ(counts(1, 4), (std::vector{1, 2, 1, 3, 1}));
}

TEST_P(TrustRatio, IsTheWholeTensorsOnEveryRankAtEveryStageAndWorld) {
  expect_whole_tensors_ratios({options_of(GetParam())});
}

// Parameters of very different norms: a ratio taken from a flat buffer, or from the wrong tensor,
// would be off by far more than the tolerance.
TEST_P(TrustRatio, TellsTensorsOfOneUnitApart) {
  Problem problem{options_of(GetParam())};
  problem.initial = [](std::uint32_t parameter, std::int64_t element) {
    return std::ldexp(initial_value(parameter, element), static_cast<int>(parameter));
  };
  expect_whole_tensors_ratios(problem);
}

TEST_P(TrustRatio, IsOneWhereANormIsZero) {
  constexpr std::uint32_t kToken = 0, kUp = 5;  // each on three ranks of some world
  ASSERT_EQ(straddling_units()[1].parameters[3].index, kUp);
  Problem problem{options_of(GetParam())};
  problem.options.decay.rate = 0.0f;
  problem.initial = [](std::uint32_t parameter, std::int64_t element) {
    return parameter == kToken ? 0.0f : initial_value(parameter, element);
  };
  problem.gradient = [](int step, std::uint32_t parameter, std::int64_t element) {
    return parameter == kUp ? 0.0f : gradient_value(step, parameter, element);
  };
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    for (const RatiosOfSteps& ratios : ratios_on_ranks(problem, shape)) {
      EXPECT_EQ(ratios[0][kToken], 1.0f);
      EXPECT_NE(ratios[1][kToken], 1.0f);  // it has moved
      for (const std::vector<float>& step : ratios) EXPECT_EQ(step[kUp], 1.0f);
    }
  }
}

// The gradient of a query's norm is almost nothing where attention has next to nothing to choose from. A
// parameter that isn't finite would make the next step's ratio a NaN.
TEST_P(TrustRatio, IsFiniteHoweverSmallTheGradient) {
  constexpr std::uint32_t kUp = 5;
  Problem problem{options_of(GetParam())};
  problem.options.decay.rate = 0.0f;
  problem.options.eps = 1.0f;
  problem.gradient = [](int step, std::uint32_t parameter, std::int64_t element) {
    if (parameter != kUp) return gradient_value(step, parameter, element);
    return element == 0 ? 1e-41f : 0.0f;
  };
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    for (const RatiosOfSteps& ratios : ratios_on_ranks(problem, shape)) {
      for (const std::vector<float>& step : ratios) EXPECT_TRUE(std::isfinite(step[kUp]));
    }
  }
}

}  // namespace
}  // namespace sherd::optim
