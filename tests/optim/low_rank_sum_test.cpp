// Low-rank sums over replicas against NumPy (tests/reference/power_sgd.py), and by algebra.
#include "optim/low_rank_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/optim/compressed_runs.h"
#include "tests/optim/formula_values.h"
#include "tests/where.h"

namespace sherd::optim {
namespace {

Compression low_rank(std::int64_t rank, std::int64_t start_step = 0) {
  Compression compression;
  compression.low_rank = {
      .rank = rank, .start_step = start_step, .min_compression_rate = 1.0, .seed = 11};
  return compression;
}

std::vector<UnitSpec> one_block() {
  return {{"block.0",
           UnitClass::kBlock,
           {ParameterSpec{"block.0.norm", {13}, {}, 0},
            ParameterSpec{"block.0.qkv", {27, 13}, {}, 1, {13, 7, 7}},
            ParameterSpec{"block.0.down", {13, 19}, {}, 2}}}};
}

void write_first_bases(CompressedSum& sum) {
  std::map<std::uint32_t, int> number;  // of the next matrix
  for (const MomentPiece& piece : sum.shared_pieces()) {
    const std::int64_t columns = piece.parameter == 1 ? 13 : 19;
    const int matrix = number[piece.parameter]++;
    for (std::int64_t i = 0; i < piece.data.numel; ++i) {
      piece.data.as<float>()[i] =
          formula(9, static_cast<int>(i / columns), piece.parameter, matrix * 100 + i % columns);
    }
  }
}

TEST(LowRankSum, HasTheSumsAndErrorsOfNumpy) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/power_sgd.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const int shards : {1, 3}) {
    const auto steps = run({.options = low_rank(2),
                            .units = one_block(),
                            .gradient = formula,
                            .replicas = 3,
                            .shards = shards,
                            .steps = static_cast<int>(expected.size()),
                            .prepare = write_first_bases});
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto of = [&](const std::string& name) {
        return fmt::format("{} of step {} on {} shards", name, i, shards);
      };
      for (const std::uint32_t parameter : {0u, 1u, 2u}) {
        const std::string name = fmt::format("{}.sum", parameter);
        expect_digest(expected[i][name], steps[i].sums.at(parameter), of(name));
      }
      for (const std::uint32_t parameter : {1u, 2u}) {
        for (int replica = 0; replica < 3; ++replica) {
          const std::string name = fmt::format("{}.error.{}", parameter, replica);
          expect_digest(expected[i][name],
                        steps[i].state.at(fmt::format("{}.{}.error", replica, parameter)),
                        of(name));
        }
      }
    }
  }
}

TEST(LowRankSum, HasTheSameBitsAtEveryStageAndOnAnyNumberOfShards) {
  expect_equal_at_every_stage(
      {.options = low_rank(2), .units = straddling_units(), .gradient = formula, .steps = 3});
}

// Up to rounding: every element's gradients of all replicas were sent, or are errors.
TEST(LowRankSum, WhatWasSentAndTheErrorsAreTheGradients) {
  const CompressedRun how{.options = low_rank(1),
                          .units = one_block(),
                          .gradient = formula,
                          .replicas = 3,
                          .steps = 40};
  const auto steps = run(how);
  for (const auto& [parameter, last] : steps.back().sums) {
    for (std::size_t i = 0; i < last.size(); ++i) {
      double sent = 0.0, gradients = 0.0, errors = 0.0;
      for (int step = 0; step < how.steps; ++step) {
        sent += steps[static_cast<std::size_t>(step)].sums.at(parameter)[i];
        for (int replica = 0; replica < how.replicas; ++replica) {
          gradients += formula(replica, step, parameter, static_cast<std::int64_t>(i));
        }
      }
      for (int replica = 0; parameter > 0 && replica < how.replicas; ++replica) {
        errors += steps.back().state.at(fmt::format("{}.{}.error", replica, parameter))[i];
      }
      EXPECT_NEAR(sent + errors, gradients, 2e-4) << parameter << " " << i;
    }
  }
}

// With the averaged remainder, errors would be six times as large after 3,000 steps as after 100
// (shared/TRAINING.md, D.3).
TEST(LowRankSum, ErrorsStayBoundedOver3000Steps) {
  const CompressedRun how{
      .options = low_rank(1),
      .units = {{"block.0", UnitClass::kBlock, {ParameterSpec{"block.0.weight", {8, 6}, {}, 0}}}},
      .gradient =
          [](int replica, int step, std::uint32_t, std::int64_t i) {
            const auto element = static_cast<std::uint64_t>(i);
            return test::number(1, element, 2) + test::number(static_cast<std::uint64_t>(replica),
                                                              element,
                                                              static_cast<std::uint64_t>(step), 9);
          },
      .replicas = 4,
      .steps = 3000};
  const auto steps = run(how);
  for (int replica = 0; replica < how.replicas; ++replica) {
    const double early = norm_of(steps[99], replica, kErrorKind);
    EXPECT_GT(early, 1.0);
    EXPECT_LT(norm_of(steps[999], replica, kErrorKind), 2.0 * early) << replica;
    EXPECT_LT(norm_of(steps[2999], replica, kErrorKind), 2.0 * early) << replica;
  }
}

TEST(LowRankSum, OfMatricesOfThatRankIsExactUpToRounding) {
  const auto of_rank_one = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    const std::int64_t columns = parameter == 0 ? 13 : parameter == 1 ? 13 : 19;
    return formula(0, step, parameter, i / columns) * formula(replica, step, 8, i % columns);
  };
  // The left vector is the same for all replicas, so their sum has rank 1, too.
  const auto steps = run({.options = low_rank(1),
                          .units = one_block(),
                          .gradient = of_rank_one,
                          .replicas = 3,
                          .steps = 2});
  for (std::size_t step = 0; step < steps.size(); ++step) {
    for (int replica = 0; replica < 3; ++replica) {
      EXPECT_LT(norm_of(steps[step], replica, kErrorKind), 5e-5) << step << " " << replica;
    }
  }
}

TEST(LowRankSum, ZeroGradientsMoveNothingAndDontEndWhatFollows) {
  const auto gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return step < 1000 ? 0.0f : formula(replica, step, parameter, i);
  };
  const CompressedRun how{
      .options = low_rank(2), .units = one_block(), .gradient = gradient, .steps = 1001};
  const auto steps = run(how);
  for (int step = 0; step < 1000; ++step) {
    for (const auto& [parameter, sum] : steps[static_cast<std::size_t>(step)].sums) {
      for (const float value : sum) ASSERT_EQ(value, 0.0f) << step << " " << parameter;
    }
  }
  EXPECT_EQ(norm_of(steps[999], 0, kErrorKind), 0.0);
  double squares = 0.0;
  for (const float value : steps[1000].sums.at(2)) squares += static_cast<double>(value) * value;
  EXPECT_GT(squares, 1.0);
}

TEST(LowRankSum, StepsBeforeItBeginsAndWithoutTargetsLeaveErrorsAlone) {
  CompressedRun how{
      .options = low_rank(1, 2), .units = one_block(), .gradient = formula, .steps = 5};
  how.has_targets = [](int step) { return step != 3; };
  const auto steps = run(how);
  for (const int step : {0, 1}) {
    const CompressedStep& plain = steps[static_cast<std::size_t>(step)];
    EXPECT_EQ(norm_of(plain, 0, kErrorKind), 0.0);
    for (const auto& [parameter, sum] : plain.sums) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const auto element = static_cast<std::int64_t>(i);
        EXPECT_EQ(sum[i],
                  formula(0, step, parameter, element) + formula(1, step, parameter, element));
      }
    }
  }
  EXPECT_GT(norm_of(steps[2], 0, kErrorKind), 1.0);
  EXPECT_TRUE(steps[3].state == steps[2].state);
  EXPECT_FALSE(steps[4].state == steps[3].state);
}

TEST(LowRankSum, WhatIsntFiniteReachesTheSum) {
  const auto gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return replica == 1 && parameter == 2 && i == 40 ? INFINITY
                                                     : formula(replica, step, parameter, i);
  };
  const auto steps = run({.options = low_rank(2), .units = one_block(), .gradient = gradient});
  int not_finite = 0;
  for (const float value : steps[0].sums.at(2)) not_finite += std::isfinite(value) ? 0 : 1;
  EXPECT_GT(not_finite, 0);
  for (const float value : steps[0].sums.at(1)) EXPECT_TRUE(std::isfinite(value));
}

TEST(LowRankSum, SendsParametersWholeThatGainTooLittle) {
  const LowRankOptions options{.rank = 4, .min_compression_rate = 2.0};
  const auto has = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> rows = {}) {
    const ParameterSpec parameter{"w", std::move(shape), {}, 0, std::move(rows)};
    return !low_rank_form(options).shapes({}, parameter).empty();
  };
  EXPECT_FALSE(has({4096}));
  EXPECT_FALSE(has({16, 16}));  // 128 numbers instead of 256: half, not less
  EXPECT_TRUE(has({16, 17}));
  EXPECT_TRUE(has({64, 64}));
  EXPECT_FALSE(has({1, 4096}));  // a vector
  EXPECT_FALSE(has({48, 16}, {16, 16, 16}));
}

}  // namespace
}  // namespace sherd::optim
