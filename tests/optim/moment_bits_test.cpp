// 16-bit moments that are rounded at random draw new numbers at every update and for every seed, and the
// same numbers for the same update and seed.

#include <gtest/gtest.h>

#include <vector>

#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {
namespace {

// The moments of one SGD update, which are the gradient, rounded.
std::vector<std::uint16_t> rounded_gradient(std::int64_t update_number, std::uint64_t seed) {
  sharding::Rank rank = test::lone_rank(0, 1);
  rank.compute_stream = make_cpu_compute_stream({});
  const auto units = test::make_units(straddling_units(), sharding::placement_of(0), rank);
  for (const sharding::UnitState& unit : units) {
    fill_gradients(unit, [](std::uint32_t, std::int64_t) { return 1.0f + 0x1p-8f; });
  }
  OptimizerOptions options;
  options.type = OptimizerType::kSgd;
  options.momentum = 0.9f;
  options.moment_type = {DType::kBF16, true, seed};
  const auto optimizer = make_optimizer(options, rank, units);
  take_step(rank.compute(), *optimizer, units, {0.01f, update_number, 1.0f});
  std::vector<std::uint16_t> bits;
  for (const MomentPiece& piece : optimizer->moment_pieces()) {
    for (std::int64_t i = 0; i < piece.data.numel; ++i) {
      bits.push_back(piece.data.as<BFloat16>()[i].bits);
    }
  }
  return bits;
}

TEST(MomentBits, AreDrawnAnewAtEveryUpdateAndForEverySeed) {
  const std::vector<std::uint16_t> first = rounded_gradient(1, 7);
  EXPECT_EQ(first, rounded_gradient(1, 7));
  EXPECT_NE(first, rounded_gradient(2, 7));
  EXPECT_NE(first, rounded_gradient(1, 8));
}

}  // namespace
}  // namespace sherd::optim
