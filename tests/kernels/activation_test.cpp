#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/oracles/oracle_activation.h"
#include "tests/support/values/tensors.h"

// T tokens, F feed-forward width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr ActivationKind kKinds[] = {ActivationKind::kGelu,    ActivationKind::kSwiGlu,
                                     ActivationKind::kGeluErf, ActivationKind::kRelu2,
                                     ActivationKind::kGeGlu,   ActivationKind::kClampedSwiGlu};

std::int64_t input_numel(const ActivationShape& shape) {
  return shape.tokens * shape.width * (is_gated(shape.kind) ? 2 : 1);
}

std::vector<ActivationShape> shapes() {
  std::vector<ActivationShape> shapes;
  for (const ActivationKind kind : kKinds) {
    for (const auto& [tokens, width] :
         {std::pair{1, 1}, {1, 7}, {3, 5}, {2, 64}, {13, 37}, {130, 96}, {130, 403}, {3, 700}}) {
      shapes.push_back({kind, tokens, width});
    }
  }
  return shapes;
}

std::string describe(const ActivationShape& shape) {
  constexpr const char* kNames[] = {"gelu",  "swiglu", "gelu_erf",
                                    "relu2", "geglu",  "clamped_swiglu"};
  return fmt::format("{} T {} F {}", kNames[static_cast<int>(shape.kind)], shape.tokens,
                     shape.width);
}

Outputs both_ways(Stream& stream, const ActivationShape& shape, const OwnedTensor& x,
                  const OwnedTensor& dy) {
  const DType dtype = x.tensor().dtype;
  Outputs out{{dtype, dy.numel()}, {dtype, x.numel()}};
  activation_forward(stream, {shape, x, out[0]});
  activation_backward(stream, {shape, x, dy, out[1]});
  return out;
}

class Activation : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Activation, test::compute_types(), test::type_name);

TEST_P(Activation, BothDirectionsMatchTheOracleOnAnyNumberOfThreads) {
  for (const ActivationShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    const OwnedTensor x(GetParam(), test::random_values(input_numel(shape), 1, 4.0));
    const OwnedTensor dy(GetParam(), test::random_values(shape.tokens * shape.width, 2));
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return both_ways(stream, shape, x, dy); });
    // 1 + tanh and its derivative lose up to 2^-24 where tanh is near -1: absolute, times |x| <= 4.
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(out[0], oracle::activation_forward(shape, x.values()), tolerance));
    EXPECT_TRUE(test::close(out[1], oracle::activation_backward(shape, x.values(), dy.values()),
                            tolerance));
  }
}

TEST_P(Activation, LargeInputsSaturateInsteadOfOverflowing) {
  const double large = GetParam() == DType::kF16 ? 200.0 : 1e4;
  for (const ActivationKind kind : kKinds) {
    const ActivationShape shape{kind, 1, 4};
    Values x = {-large, large, -100.0, 100.0};
    if (is_gated(kind)) x.insert(x.end(), {1.0, 1.0, -1.0, 1.0});
    const OwnedTensor input(GetParam(), x), dy(GetParam(), Values(4, 1.0));
    const Outputs out = both_ways(*test::compute_stream(), shape, input, dy);
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(out[0], oracle::activation_forward(shape, input.values()), tolerance));
    EXPECT_TRUE(test::close(out[1], oracle::activation_backward(shape, input.values(), dy.values()),
                            tolerance));
  }
}

TEST_P(Activation, NaNStaysNaN) {
  for (const ActivationKind kind : kKinds) {
    const ActivationShape shape{kind, 1, 19};
    Values x = test::random_values(input_numel(shape), 1);
    x[7] = std::numeric_limits<double>::quiet_NaN();
    const Outputs out = both_ways(*test::compute_stream(), shape, OwnedTensor(GetParam(), x),
                                  OwnedTensor(GetParam(), Values(19, 1.0)));
    EXPECT_TRUE(std::isnan(out[0].values()[7]));
    EXPECT_TRUE(std::isnan(out[1].values()[7]));
    EXPECT_FALSE(std::isnan(out[0].values()[8]));
  }
}

TEST_P(Activation, GradientMayReplaceTheInput) {
  for (const ActivationKind kind : kKinds) {
    const ActivationShape shape{kind, 5, 43};
    OwnedTensor x(GetParam(), test::random_values(input_numel(shape), 1, 4.0));
    const OwnedTensor dy(GetParam(), test::random_values(5 * 43, 2));
    const auto stream = test::compute_stream(2);
    const Outputs apart = both_ways(*stream, shape, x, dy);
    activation_backward(*stream, {shape, x, dy, x});
    EXPECT_TRUE(test::same_bits(x, apart[1]));
  }
}

TEST_P(Activation, AnElementHasTheSameBitsWhereverItLies) {
  constexpr std::int64_t kWidth = 301;
  const auto stream = test::compute_stream();
  for (const ActivationKind kind : kKinds) {
    const ActivationShape shape{kind, 1, kWidth};
    const OwnedTensor x(GetParam(), test::random_values(input_numel(shape), 1, 4.0));
    const OwnedTensor dy(GetParam(), test::random_values(kWidth, 2));
    const Outputs whole = both_ways(*stream, shape, x, dy);
    for (std::int64_t first = 0; first < 10; ++first) {
      const std::int64_t n = kWidth - 2 * first - 3;
      // Gates and ups are cut alike, so that the element keeps its pair.
      const auto cut = [&](const OwnedTensor& from) {
        Values values;
        for (std::int64_t begin = 0; begin < from.numel(); begin += kWidth) {
          const Values part = test::values_of(ConstTensor(from).part(begin + first, n));
          values.insert(values.end(), part.begin(), part.end());
        }
        return OwnedTensor(GetParam(), values);
      };
      const Outputs part = both_ways(*stream, {kind, 1, n}, cut(x), cut(dy));
      EXPECT_TRUE(test::same_bits(part[0], cut(whole[0]))) << "from " << first;
      EXPECT_TRUE(test::same_bits(part[1], cut(whole[1]))) << "from " << first;
    }
  }
}

// As clamp of PyTorch: the gradient is 0 beyond a bound.
TEST_P(Activation, ClampedSwiGluBoundsTheGateAboveAndTheOtherHalfOnBothSides) {
  const ActivationShape shape{ActivationKind::kClampedSwiGlu, 1, 5};
  const OwnedTensor x(GetParam(), {9.0, -9.0, 3.0, 3.0, 12.0, 1.0, 1.0, 8.0, -8.0, 12.0});
  const Outputs out =
      both_ways(*test::compute_stream(), shape, x, OwnedTensor(GetParam(), Values(5, 1.0)));
  const Values y = out[0].values(), dx = out[1].values();
  EXPECT_NEAR(y[0], 7.0 / (1.0 + std::exp(-1.702 * 7.0)) * 2.0, 0.06);
  EXPECT_NEAR(y[2], 3.0 / (1.0 + std::exp(-1.702 * 3.0)) * 8.0, 0.1);
  EXPECT_NEAR(y[3], 3.0 / (1.0 + std::exp(-1.702 * 3.0)) * -6.0, 0.1);
  EXPECT_EQ(dx[0], 0.0);  // the gate, above its bound
  EXPECT_NE(dx[1], 0.0);  // there is none below
  for (const int up : {7, 8, 9}) EXPECT_EQ(dx[static_cast<std::size_t>(up)], 0.0) << up;
  EXPECT_NE(dx[5], 0.0);
}

TEST(ActivationOracle, KnowsSomeValues) {
  // gelu(1) in the tanh form, as PyTorch and JAX document it: 0.841192; silu(1) = 1 / (1 + 1/e).
  EXPECT_NEAR(oracle::activation_forward({ActivationKind::kGelu, 1, 1}, {1.0})[0], 0.841192, 1e-6);
  EXPECT_NEAR(oracle::activation_forward({ActivationKind::kSwiGlu, 1, 1}, {1.0, 2.0})[0],
              2.0 / (1.0 + std::exp(-1.0)), 1e-15);
  // The normal distribution's table: half of those within one sigma are above the mean.
  EXPECT_NEAR(oracle::activation_forward({ActivationKind::kGeluErf, 1, 1}, {1.0})[0], 0.841345,
              1e-6);
  EXPECT_EQ(oracle::activation_forward({ActivationKind::kRelu2, 1, 2}, {3.0, -3.0}),
            (Values{9.0, 0.0}));
  EXPECT_NEAR(oracle::activation_forward({ActivationKind::kGeGlu, 1, 1}, {1.0, 2.0})[0],
              2 * 0.841192, 2e-6);
}

// Relative to itself, where the exact form is as small as 1e-22: a normal tail that was 1 - cdf
// would have no digit left.
TEST(Activation, ExactGeluKeepsItsRelativeAccuracyInTheTail) {
  Values x;
  for (int i = 0; i < 400; ++i) x.push_back(-0.025 * i - 0.01);
  const ActivationShape shape{ActivationKind::kGeluErf, 1, 400};
  const OwnedTensor in(DType::kF32, x);
  OwnedTensor out(DType::kF32, 400);
  activation_forward(*test::compute_stream(), {shape, in, out});
  EXPECT_TRUE(test::close(out, oracle::activation_forward(shape, in.values()), {2e-6, 0.0, 0.0}));
}

TEST(ActivationOracle, GradientsAreCentralDifferences) {
  for (const ActivationKind kind : kKinds) {
    const ActivationShape shape{kind, 3, 4};
    const Values x = test::random_values(input_numel(shape), 1, 3.0);
    const Values direction = test::random_values(12, 2);
    EXPECT_TRUE(oracle::is_gradient(
        oracle::activation_backward(shape, x, direction), x, [&](const Values& v) {
          return oracle::dot(direction, oracle::activation_forward(shape, v));
        }));
  }
}

}  // namespace
}  // namespace sherd::kernels
