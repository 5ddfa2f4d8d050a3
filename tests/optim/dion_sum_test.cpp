// Dion with a momentum of each replica against NumPy (tests/reference/decoupled_dion.py), and by algebra.
#include "optim/matrices/dion_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "optim/matrices/dion.h"
#include "tests/optim/compressed_runs.h"
#include "tests/optim/formula_values.h"
#include "tests/where.h"

namespace sherd::optim {
namespace {

constexpr int kReplicas = 3;

Compression dion(std::int64_t average_interval = 0, int replicas = kReplicas) {
  OptimizerOptions optimizer;
  optimizer.type = OptimizerType::kDion;
  optimizer.momentum = 0.95f;
  optimizer.dion_decoupled = true;
  optimizer.moment_type.seed = 5;
  Compression compression;
  compression.num_replicas = replicas;
  compression.dion = {std::make_shared<const OptimizerOptions>(optimizer), average_interval};
  return compression;
}

std::vector<UnitSpec> one_block() {
  return {{"block.0",
           UnitClass::kBlock,
           {ParameterSpec{"block.0.norm", {13}, {}, 0},
            ParameterSpec{"block.0.qkv", {27, 13}, {}, 1, {13, 7, 7}},
            ParameterSpec{"block.0.down", {13, 19}, {}, 2},
            ParameterSpec{"block.0.up", {24, 8}, {}, 3}}}};
}

CompressedRun steps_of(int steps, std::int64_t average_interval = 0, int replicas = kReplicas) {
  return {.options = dion(average_interval, replicas),
          .units = one_block(),
          .gradient = formula,
          .replicas = replicas,
          .steps = steps};
}

// As in tests/reference/decoupled_dion.py.
void write_first_bases(CompressedSum& sum) {
  std::map<std::uint32_t, int> number;  // of the next matrix
  for (const MomentPiece& piece : sum.shared_pieces()) {
    const int matrix = number[piece.parameter]++;
    for (std::int64_t i = 0; i < piece.data.numel; ++i) {
      piece.data.as<float>()[i] = formula(9, matrix, piece.parameter, i);
    }
  }
}

const std::vector<float>& momentum_of(const CompressedStep& step, int replica,
                                      std::uint32_t parameter) {
  return step.state.at(fmt::format("{}.{}.momentum", replica, parameter));
}

TEST(DionSum, HasTheUpdatesAndMomentaOfNumpy) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/decoupled_dion.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const auto& [name, interval] : {std::pair("momentum", 0), std::pair("averaged", 10)}) {
    for (const int shards : {1, 3}) {
      CompressedRun how = steps_of(expected.back()["step"].get<int>() + 1, interval);
      how.shards = shards;
      how.prepare = write_first_bases;
      const auto steps = run(how);
      for (const auto& look : expected) {
        const int number = look["step"];
        const CompressedStep& step = steps[static_cast<std::size_t>(number)];
        for (const std::uint32_t parameter : {1u, 2u, 3u}) {
          const auto label = fmt::format("{} of parameter {} in step {}", name, parameter, number);
          expect_digest(look[fmt::format("{}.sum", parameter)], step.sums.at(parameter), label);
          for (int replica = 0; replica < kReplicas; ++replica) {
            expect_digest(look[fmt::format("{}.{}.{}", parameter, name, replica)],
                          momentum_of(step, replica, parameter), label);
          }
        }
      }
    }
  }
}

TEST(DionSum, HasTheSameBitsAtEveryStageAndOnAnyNumberOfShards) {
  for (const std::int64_t interval : {0, 2}) {
    CompressedRun how = steps_of(4, interval, 2);
    how.units = straddling_units();
    expect_equal_at_every_stage(how);
  }
}

TEST(DionSum, AddsOtherParametersWhole) {
  const auto steps = run(steps_of(2));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const std::vector<float>& norm = steps[step].sums.at(0);
    for (std::size_t i = 0; i < norm.size(); ++i) {
      float sum = 0.0f;
      for (int replica = 0; replica < kReplicas; ++replica) {
        sum += formula(replica, static_cast<int>(step), 0, static_cast<std::int64_t>(i));
      }
      EXPECT_EQ(norm[i], sum) << step << " " << i;
    }
    EXPECT_FALSE(steps[step].state.contains("0.0.momentum"));
  }
}

double distance(const std::vector<float>& one, const std::vector<float>& other) {
  double squares = 0.0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    squares += std::pow(static_cast<double>(one[i]) - static_cast<double>(other[i]), 2.0);
  }
  return std::sqrt(squares);
}

// The average is taken before the gradient is added, so two steps are compared, not their states.
TEST(DionSum, AveragesBringMomentaTogetherAndLeaveUpdatesAlone) {
  constexpr std::int64_t kInterval = 8;
  const auto apart = run(steps_of(33)), averaged = run(steps_of(33, kInterval));
  const auto spread = [](const CompressedStep& step) {
    return distance(momentum_of(step, 0, 2), momentum_of(step, 1, 2));
  };
  for (std::size_t step = 0; step < apart.size(); ++step) {
    if (step < kInterval) {
      EXPECT_TRUE(apart[step] == averaged[step]) << step;
    } else {
      EXPECT_LT(spread(averaged[step]), spread(apart[step])) << step;
    }
    EXPECT_LT(distance(apart[step].sums.at(2), averaged[step].sums.at(2)), 1e-4) << step;
  }
  EXPECT_LT(spread(averaged[32]), 0.5 * spread(averaged[31]));
}

// With the mean of R subtracted, they would be some five times as large after 3,000 steps as after 100
// (shared/TRAINING.md, D.4).
TEST(DionSum, MomentaStayBoundedOver3000Steps) {
  CompressedRun how = steps_of(3000, 0, 4);
  how.units = {{"block.0", UnitClass::kBlock, {ParameterSpec{"block.0.weight", {12, 8}, {}, 0}}}};
  how.gradient = [](int replica, int step, std::uint32_t, std::int64_t i) {
    const auto element = static_cast<std::uint64_t>(i);
    return test::number(1, element, 2) + test::number(static_cast<std::uint64_t>(replica), element,
                                                      static_cast<std::uint64_t>(step), 9);
  };
  const auto steps = run(how);
  for (int replica = 0; replica < how.replicas; ++replica) {
    const double early = norm_of(steps[299], replica, "momentum");
    EXPECT_GT(early, 1.0);
    EXPECT_LT(norm_of(steps[2999], replica, "momentum"), 2.0 * early) << replica;
  }
}

TEST(DionSum, StepsWithoutTargetsLeaveMomentaAlone) {
  CompressedRun how = steps_of(6, 2);
  how.has_targets = [](int step) { return step != 3 && step != 4; };
  const auto steps = run(how);
  EXPECT_TRUE(steps[3].state == steps[2].state);
  EXPECT_TRUE(steps[4].state == steps[2].state);
  EXPECT_FALSE(steps[5].state == steps[4].state);
}

TEST(DionSum, ZeroGradientsMoveNothingAndDontEndWhatFollows) {
  CompressedRun how = steps_of(1001, 100, 2);
  how.gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return step < 1000 ? 0.0f : formula(replica, step, parameter, i);
  };
  const auto steps = run(how);
  for (int step = 0; step < 1000; ++step) {
    const CompressedStep& zero = steps[static_cast<std::size_t>(step)];
    for (const auto& [parameter, sum] : zero.sums) {
      for (const float value : sum) ASSERT_EQ(value, 0.0f) << step << " " << parameter;
    }
    ASSERT_EQ(zero.state, steps[0].state) << step;
  }
  double squares = 0.0;
  for (const float value : steps[1000].sums.at(3)) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(squares, 2.0, 1e-3) << "two vectors of length 1";
}

}  // namespace
}  // namespace sherd::optim
