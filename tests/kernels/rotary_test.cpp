#include "kernels/rotary.h"

#include <gtest/gtest.h>

#include "tests/support/oracle_rotary.h"
#include "tests/support/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr double kTheta = 10000.0;

struct Case {
  std::int64_t B, S, H, G, K;

  std::int64_t packed_width() const { return (H + 2 * G) * K; }
  std::int64_t numel() const { return B * S * packed_width(); }
  Rotary rotary(ConstTensor table, Tensor qkv, bool inverse) const {
    return {B, S, H, G, K, table, qkv, inverse};
  }
};

const Case kCases[] = {{1, 1, 1, 1, 2},  {1, 7, 1, 1, 6},    {2, 13, 4, 4, 10},
                       {2, 65, 4, 2, 8}, {1, 130, 6, 2, 24}, {1, 9, 2, 1, 64}};

OwnedTensor table_of(Stream& stream, const Case& c) {
  OwnedTensor table(DType::kF32, c.S * c.K);
  rotary_table(stream, table, c.S, c.K, kTheta);
  return table;
}

TEST(RotaryTable, IsTheDoubleTableRoundedOnce) {
  for (const auto& [positions, head_width] : {std::pair{1, 2}, {7, 6}, {150, 64}, {1024, 10}}) {
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      OwnedTensor table(DType::kF32, positions * head_width);
      rotary_table(stream, table, positions, head_width, kTheta);
      return Outputs{table};
    });
    // Half an ulp of f32; 1e-12 is the double arithmetic of an angle of about 1000.
    EXPECT_TRUE(test::close(out[0], oracle::rotary_table(positions, head_width, kTheta),
                            {0x1p-24, 0.0, 1e-12}));
  }
}

class RotaryTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RotaryTest, test::compute_types(), test::type_name);

TEST_P(RotaryTest, BothDirectionsMatchTheOracleOnAnyNumberOfThreads) {
  for (const Case& c : kCases) {
    const OwnedTensor x(GetParam(), test::random_values(c.numel(), 1));
    const OwnedTensor table = table_of(*test::compute_stream(), c);
    for (const bool inverse : {false, true}) {
      const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
        OwnedTensor qkv = x;
        rotary(stream, c.rotary(table, qkv, inverse));
        return Outputs{qkv};
      });
      const Values expected = oracle::rotary(c.rotary({}, {}, inverse), table.values(), x.values());
      EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())))
          << "B " << c.B << " S " << c.S << " H " << c.H << " G " << c.G << " K " << c.K;
    }
  }
}

TEST_P(RotaryTest, LeavesTheValueHeadsAlone) {
  for (const Case& c : kCases) {
    const auto stream = test::compute_stream();
    const OwnedTensor before(GetParam(), test::random_values(c.numel(), 1));
    OwnedTensor qkv = before;
    rotary(*stream, c.rotary(table_of(*stream, c), qkv, false));
    for (std::int64_t t = 0; t < c.B * c.S; ++t) {
      const std::int64_t at = t * c.packed_width() + (c.H + c.G) * c.K;
      ASSERT_TRUE(test::same_bits(ConstTensor(qkv).part(at, c.G * c.K),
                                  ConstTensor(before).part(at, c.G * c.K)));
    }
  }
}

TEST_P(RotaryTest, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  const Case c{3, 11, 3, 1, 10};
  const auto stream = test::compute_stream();
  const OwnedTensor table = table_of(*stream, c), x(GetParam(), test::random_values(c.numel(), 1));
  OwnedTensor together = x, alone = x;
  rotary(*stream, c.rotary(table, together, false));
  const std::int64_t n = c.S * c.packed_width();
  for (std::int64_t b = 0; b < c.B; ++b) {
    rotary(*stream, Case{1, c.S, c.H, c.G, c.K}.rotary(table, Tensor(alone).part(b * n, n), false));
  }
  EXPECT_TRUE(test::same_bits(alone, together));
}

TEST(RotaryOracle, InverseIsTheGradient) {
  const Case c{2, 3, 2, 1, 4};
  const Values table = oracle::rotary_table(c.S, c.K, kTheta);
  const Values x = test::random_values(c.numel(), 1), direction = test::random_values(c.numel(), 2);
  EXPECT_TRUE(oracle::is_gradient(
      oracle::rotary(c.rotary({}, {}, true), table, direction), x, [&](const Values& v) {
        return oracle::dot(direction, oracle::rotary(c.rotary({}, {}, false), table, v));
      }));
}

}  // namespace
}  // namespace sherd::kernels
