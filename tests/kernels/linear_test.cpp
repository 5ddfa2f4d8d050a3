#include "kernels/linear.h"

#include <gtest/gtest.h>

#include "core/thread_team.h"
#include "kernels/activation.h"
#include "kernels/pointwise.h"
#include "tests/support/oracles/oracle_linear.h"
#include "tests/support/values/tensors.h"

// T tokens, I inputs, O outputs.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

// Ones, primes, sizes next to multiples of a vector and of a tile; the last two have several tiles
// in every direction: of the depth, and of an output too large for four.
const LinearShape kShapes[] = {{1, 1, 1},     {1, 7, 5},       {5, 1, 3},
                               {3, 17, 1},    {13, 31, 29},    {130, 96, 200},
                               {65, 200, 96}, {259, 300, 331}, {1281, 3, 1290}};

struct LinearCase {
  LinearCase(DType dtype, LinearShape shape)
      : dtype(dtype),
        shape(shape),
        x(dtype, test::random_values(shape.tokens * shape.inputs, 1)),
        w(dtype, test::random_values(shape.outputs * shape.inputs, 2)),
        bias(dtype, test::random_values(shape.outputs, 3)),
        dy(dtype, test::random_values(shape.tokens * shape.outputs, 4)) {}

  OwnedTensor workspace(Stream& stream, DType grad_dtype) const {
    return test::workspace(
        linear_workspace_bytes(shape, dtype, grad_dtype, compute_device(stream)));
  }

  DType dtype;
  LinearShape shape;
  OwnedTensor x, w, bias, dy;
};

OwnedTensor forward(Stream& stream, const LinearCase& c, bool with_bias) {
  OwnedTensor y(c.dtype, c.shape.tokens * c.shape.outputs);
  OwnedTensor workspace = c.workspace(stream, c.dtype);
  linear_forward(
      stream, {c.shape, c.x, c.w, with_bias ? ConstTensor(c.bias) : ConstTensor(), y, workspace});
  return y;
}

// `before`, if given, is the initial value of dx, to which the result is added.
OwnedTensor backward_input(Stream& stream, const LinearCase& c,
                           const OwnedTensor* before = nullptr) {
  OwnedTensor dx = before ? *before : OwnedTensor(c.dtype, c.shape.tokens * c.shape.inputs);
  OwnedTensor workspace = c.workspace(stream, c.dtype);
  linear_backward_input(stream, {c.shape, c.dy, c.w, dx, before != nullptr, workspace});
  return dx;
}

Outputs backward_weight(Stream& stream, const LinearCase& c, DType grad_dtype,
                        const Outputs* before = nullptr) {
  OwnedTensor dw =
      before ? (*before)[0] : OwnedTensor(grad_dtype, c.shape.outputs * c.shape.inputs);
  OwnedTensor dbias = before ? (*before)[1] : OwnedTensor(grad_dtype, c.shape.outputs);
  OwnedTensor workspace = c.workspace(stream, grad_dtype);
  linear_backward_weight(stream, {c.shape, c.dy, c.x, dw, dbias, before != nullptr, workspace});
  return {dw, dbias};
}

std::string describe(const LinearShape& shape) {
  return fmt::format("T {} I {} O {}", shape.tokens, shape.inputs, shape.outputs);
}

class Linear : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Linear, test::compute_types(), test::type_name);

TEST_P(Linear, ForwardMatchesTheOracleOnAnyNumberOfThreads) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    for (const bool with_bias : {true, false}) {
      const Outputs out = test::on_any_number_of_threads(
          [&](Stream& stream) { return Outputs{forward(stream, c, with_bias)}; });
      const Values expected = oracle::linear_forward(shape, c.x.values(), c.w.values(),
                                                     with_bias ? c.bias.values() : Values{});
      EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())));
    }
  }
}

TEST_P(Linear, InputGradientMatchesTheOracleOnAnyNumberOfThreads) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return Outputs{backward_input(stream, c)}; });
    const Values expected = oracle::linear_backward_input(shape, c.dy.values(), c.w.values());
    EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())));
  }
}

TEST_P(Linear, WeightGradientMatchesTheOracleInItsOwnTypeOnAnyNumberOfThreads) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    const Values dw = oracle::linear_backward_weight(shape, c.dy.values(), c.x.values());
    const Values dbias = oracle::linear_backward_bias(shape, c.dy.values());
    for (const DType grad_dtype : {GetParam(), DType::kF32}) {
      const Outputs out = test::on_any_number_of_threads(
          [&](Stream& stream) { return backward_weight(stream, c, grad_dtype); });
      EXPECT_TRUE(test::close(out[0], dw, test::rounded_once(grad_dtype)));
      EXPECT_TRUE(test::close(out[1], dbias, test::rounded_once(grad_dtype)));
    }
  }
}

TEST_P(Linear, WeightGradientNeedsNoBias) {
  const LinearCase c(GetParam(), {13, 31, 29});
  const auto stream = test::compute_stream();
  OwnedTensor dw(GetParam(), c.shape.outputs * c.shape.inputs);
  OwnedTensor workspace = c.workspace(*stream, GetParam());
  linear_backward_weight(*stream, {c.shape, c.dy, c.x, dw, Tensor(), false, workspace});
  EXPECT_TRUE(test::same_bits(dw, backward_weight(*stream, c, GetParam())[0]));
}

// In f32 the result of an addition after the whole sum is known to the bit: the earlier value plus
// what the product alone gives.
TEST(LinearAdd, IsOneAdditionAfterTheWholeSumInF32) {
  for (const LinearShape& shape : {LinearShape{13, 31, 29}, LinearShape{130, 96, 200}}) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(DType::kF32, shape);
    const auto stream = test::compute_stream(2);
    const auto plus = [](const OwnedTensor& a, const OwnedTensor& b) {
      OwnedTensor sum(DType::kF32, a.numel());
      for (std::int64_t i = 0; i < a.numel(); ++i) {
        sum.tensor().as<float>()[i] = a.tensor().as<float>()[i] + b.tensor().as<float>()[i];
      }
      return sum;
    };
    const OwnedTensor dx(DType::kF32, test::random_values(shape.tokens * shape.inputs, 5));
    EXPECT_TRUE(
        test::same_bits(backward_input(*stream, c, &dx), plus(dx, backward_input(*stream, c))));

    const Outputs before{{DType::kF32, test::random_values(shape.outputs * shape.inputs, 6)},
                         {DType::kF32, test::random_values(shape.outputs, 7)}};
    const Outputs alone = backward_weight(*stream, c, DType::kF32);
    const Outputs added = backward_weight(*stream, c, DType::kF32, &before);
    EXPECT_TRUE(test::same_bits(added[0], plus(before[0], alone[0])));
    EXPECT_TRUE(test::same_bits(added[1], plus(before[1], alone[1])));
  }
}

TEST_P(Linear, AddsToWhatStandsInTheGradientsOnAnyNumberOfThreads) {
  for (const LinearShape& shape : {LinearShape{13, 31, 29}, LinearShape{130, 96, 200}}) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    const OwnedTensor dx(GetParam(), test::random_values(shape.tokens * shape.inputs, 5));
    const Outputs before{{GetParam(), test::random_values(shape.outputs * shape.inputs, 6)},
                         {GetParam(), test::random_values(shape.outputs, 7)}};
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      Outputs outputs = backward_weight(stream, c, GetParam(), &before);
      outputs.push_back(backward_input(stream, c, &dx));
      return outputs;
    });
    const auto plus = [](Values a, const Values& b) {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    };
    const test::Tolerance tolerance = test::rounded_once(GetParam());
    const Values dy = c.dy.values();
    EXPECT_TRUE(test::close(
        out[0], plus(oracle::linear_backward_weight(shape, dy, c.x.values()), before[0].values()),
        tolerance));
    EXPECT_TRUE(test::close(
        out[1], plus(oracle::linear_backward_bias(shape, dy), before[1].values()), tolerance));
    EXPECT_TRUE(test::close(
        out[2], plus(oracle::linear_backward_input(shape, dy, c.w.values()), dx.values()),
        tolerance));
  }
}

// Fused GELU is bit-identical to the two calls that it replaces.
TEST_P(Linear, GeluTakenAlongHasTheBitsOfTheTwoCalls) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    const OwnedTensor before(GetParam(), test::random_values(shape.tokens * shape.inputs, 9, 3.0));
    for (const bool with_bias : {true, false}) {
      const auto stream = test::compute_stream(2);
      OwnedTensor workspace = c.workspace(*stream, GetParam());
      const ConstTensor bias = with_bias ? ConstTensor(c.bias) : ConstTensor();
      OwnedTensor sum(GetParam(), shape.tokens * shape.outputs), y = sum, dx = before;
      linear_forward(*stream, {c.shape, c.x, c.w, bias, y, workspace, sum});
      linear_backward_input(*stream, {c.shape, c.dy, c.w, dx, false, workspace, before});

      const OwnedTensor expected_sum = forward(*stream, c, with_bias);
      OwnedTensor expected_y = expected_sum, expected_dx = before;
      activation_forward(
          *stream,
          {{ActivationKind::kGelu, shape.tokens, shape.outputs}, expected_sum, expected_y});
      activation_backward(*stream, {{ActivationKind::kGelu, shape.tokens, shape.inputs},
                                    before,
                                    backward_input(*stream, c),
                                    expected_dx});
      EXPECT_TRUE(test::same_bits(sum, expected_sum));
      EXPECT_TRUE(test::same_bits(y, expected_y));
      EXPECT_TRUE(test::same_bits(dx, expected_dx));
    }
  }
}

// Adding the product to a residual stream is bit-identical to the two calls.
TEST_P(Linear, AddsTheProductToAResidualStream) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const LinearCase c(GetParam(), shape);
    const OwnedTensor residual(GetParam(), test::random_values(shape.tokens * shape.outputs, 9));
    for (const bool with_bias : {true, false}) {
      const auto stream = test::compute_stream(2);
      OwnedTensor workspace = c.workspace(*stream, GetParam());
      const ConstTensor bias = with_bias ? ConstTensor(c.bias) : ConstTensor();
      OwnedTensor y(GetParam(), shape.tokens * shape.outputs);
      linear_forward(*stream, {c.shape, c.x, c.w, bias, y, workspace, {}, residual});
      OwnedTensor expected = forward(*stream, c, with_bias);
      residual_add(*stream, residual, expected, {}, expected);
      EXPECT_TRUE(test::same_bits(y, expected));
    }
  }
}

TEST(LinearOracle, GradientsAreCentralDifferences) {
  const LinearShape shape{3, 4, 5};
  const Values x = test::random_values(12, 1), w = test::random_values(20, 2);
  const Values bias = test::random_values(5, 3), direction = test::random_values(15, 4);
  const auto loss = [&](const Values& x_, const Values& w_, const Values& bias_) {
    return oracle::dot(direction, oracle::linear_forward(shape, x_, w_, bias_));
  };
  EXPECT_TRUE(oracle::is_gradient(oracle::linear_backward_input(shape, direction, w), x,
                                  [&](const Values& v) { return loss(v, w, bias); }));
  EXPECT_TRUE(oracle::is_gradient(oracle::linear_backward_weight(shape, direction, x), w,
                                  [&](const Values& v) { return loss(x, v, bias); }));
  EXPECT_TRUE(oracle::is_gradient(oracle::linear_backward_bias(shape, direction), bias,
                                  [&](const Values& v) { return loss(x, w, v); }));
}

}  // namespace
}  // namespace sherd::kernels
