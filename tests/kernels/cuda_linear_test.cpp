// Products on a GPU: against the double oracle; what is added, and biases, against the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/linear.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_activation.h"
#include "tests/support/oracles/oracle_linear.h"

// T tokens, I inputs, O outputs.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

// Sizes next to multiples of tiles and packs, rows that don't begin at a multiple of 16 bytes, and whole ones.
const LinearShape kShapes[] = {{1, 1, 1},     {1, 7, 5},       {3, 17, 1},
                               {13, 31, 29},  {64, 64, 64},    {130, 96, 200},
                               {65, 200, 96}, {259, 300, 331}, {256, 256, 384}};

struct Case {
  Case(DType type, LinearShape shape)
      : type(type),
        shape(shape),
        x(type, random_values(shape.tokens * shape.inputs, 1)),
        w(type, random_values(shape.outputs * shape.inputs, 2)),
        bias(type, random_values(shape.outputs, 3)),
        dy(type, random_values(shape.tokens * shape.outputs, 4)) {}

  Tensor scratch(Place& place, DType grad) const {
    return place.scratch(linear_workspace_bytes(shape, type, grad, place.device()));
  }

  DType type;
  LinearShape shape;
  OwnedTensor x, w, bias, dy;
};

std::string describe(const LinearShape& s) {
  return fmt::format("T {} I {} O {}", s.tokens, s.inputs, s.outputs);
}

class CudaLinear : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaLinear, test::compute_types(), test::type_name);

TEST_P(CudaLinear, ForwardAndInputGradientMatchTheOracle) {
  for (const LinearShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const Case c(GetParam(), shape);
    const Outputs out = test::on_gpu([&](Place& place) {
      Outputs outputs{{c.type, shape.tokens * shape.outputs},
                      {c.type, shape.tokens * shape.outputs},
                      {c.type, shape.tokens * shape.inputs}};
      Stream& stream = place.stream();
      const ConstTensor x = place.in(c.x), w = place.in(c.w);
      const Tensor scratch = c.scratch(place, c.type);
      linear_forward(stream, {shape, x, w, place.in(c.bias), place.out(outputs[0]), scratch});
      linear_forward(stream, {shape, x, w, {}, place.out(outputs[1]), scratch});
      linear_backward_input(stream,
                            {shape, place.in(c.dy), w, place.out(outputs[2]), false, scratch});
      place.finish();
      return outputs;
    });
    const test::Tolerance tolerance = test::rounded_once(c.type);
    const Values x = c.x.values(), w = c.w.values();
    EXPECT_TRUE(
        test::close(out[0], oracle::linear_forward(shape, x, w, c.bias.values()), tolerance));
    EXPECT_TRUE(test::close(out[1], oracle::linear_forward(shape, x, w, {}), tolerance));
    EXPECT_TRUE(
        test::close(out[2], oracle::linear_backward_input(shape, c.dy.values(), w), tolerance));
  }
}

TEST_P(CudaLinear, WeightGradientMatchesTheOracleAndTheBiasHasTheCpusBits) {
  for (const LinearShape& shape : kShapes) {
    for (const DType grad : {GetParam(), DType::kF32}) {
      SCOPED_TRACE(describe(shape));
      const Case c(GetParam(), shape);
      const test::Work work = [&](Place& place) {
        Outputs out{{grad, shape.outputs * shape.inputs}, {grad, shape.outputs}};
        linear_backward_weight(place.stream(),
                               {shape, place.in(c.dy), place.in(c.x), place.out(out[0]),
                                place.out(out[1]), false, c.scratch(place, grad)});
        place.finish();
        return out;
      };
      const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
      EXPECT_TRUE(test::close(gpu[0],
                              oracle::linear_backward_weight(shape, c.dy.values(), c.x.values()),
                              test::rounded_once(grad)));
      EXPECT_TRUE(test::same_bits(gpu[1], cpu[1]));
    }
  }
}

TEST_P(CudaLinear, AddsToWhatStandsInTheGradients) {
  for (const LinearShape& shape : {LinearShape{13, 31, 29}, LinearShape{130, 96, 200}}) {
    SCOPED_TRACE(describe(shape));
    const Case c(GetParam(), shape);
    const OwnedTensor dx(c.type, random_values(shape.tokens * shape.inputs, 5));
    const OwnedTensor dw(DType::kF32, random_values(shape.outputs * shape.inputs, 6));
    const OwnedTensor dbias(DType::kF32, random_values(shape.outputs, 7));
    const test::Work work = [&](Place& place) {
      Outputs out{dx, dw, dbias};
      const ConstTensor dy = place.in(c.dy);
      const Tensor scratch = c.scratch(place, DType::kF32);
      linear_backward_input(place.stream(),
                            {shape, dy, place.in(c.w), place.out(out[0]), true, scratch});
      linear_backward_weight(place.stream(), {shape, dy, place.in(c.x), place.out(out[1]),
                                              place.out(out[2]), true, scratch});
      place.finish();
      return out;
    };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    // cuBLASLt rounds a product to 16 bits before it adds it.
    const Values expected = cpu[0].values(), before = dx.values();
    const test::Tolerance rounding = test::rounded_once(c.type);
    Values bounds(expected.size());
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const double product = std::abs(expected[i] - before[i]);
      bounds[i] = rounding.relative * (2 * std::abs(expected[i]) + product) + 4e-5;
    }
    EXPECT_TRUE(test::within(gpu[0].values(), expected, bounds));
    EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), test::rounded_once(DType::kF32).times(2)));
    EXPECT_TRUE(test::same_bits(gpu[2], cpu[2]));
  }
}

// With sizes whose sums are split, and whose rows aren't aligned.
TEST_P(CudaLinear, AddsTheProductToAResidualStream) {
  for (const LinearShape& shape : kShapes) {
    const Case c(GetParam(), shape);
    const OwnedTensor residual(c.type, random_values(shape.tokens * shape.outputs, 9));
    for (const bool with_bias : {true, false}) {
      SCOPED_TRACE(describe(shape) + (with_bias ? ", bias" : ""));
      const Outputs out = test::on_gpu([&](Place& place) {
        Outputs outputs{{c.type, shape.tokens * shape.outputs}, residual};
        const ConstTensor bias = with_bias ? place.in(c.bias) : ConstTensor();
        const ConstTensor x = place.in(c.x), w = place.in(c.w);
        const Tensor scratch = c.scratch(place, c.type);
        const Tensor stream = place.out(outputs[1]);
        linear_forward(place.stream(),
                       {shape, x, w, bias, place.out(outputs[0]), scratch, {}, stream});
        place.finish();
        return outputs;
      });
      const Values sum = oracle::linear_forward(shape, c.x.values(), c.w.values(),
                                                with_bias ? c.bias.values() : Values{});
      // cuBLASLt may round to 16 bits before it adds the stream, or before it adds the bias.
      const Values before = residual.values(), bias = c.bias.values();
      const test::Tolerance rounding = test::rounded_once(c.type);
      Values expected(sum.size()), bounds(sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        expected[i] = before[i] + sum[i];
        const double own_bias = with_bias ? bias[i % static_cast<std::size_t>(shape.outputs)] : 0.0;
        const double between =
            std::max(std::abs(sum[i]), std::abs(expected[i] - own_bias)) + std::abs(own_bias);
        bounds[i] = rounding.relative * (2 * std::abs(expected[i]) + between) + 4e-5;
      }
      EXPECT_TRUE(test::within(out[0].values(), expected, bounds));
      EXPECT_TRUE(test::same_bits(out[1], residual)) << "the stream was written";
    }
  }
}

// Rows of a multiple of 8 elements go through cuBLASLt's epilogue, the others through two kernels.
TEST_P(CudaLinear, GeluTakenAlongMatchesTheOracleInBothDirections) {
  for (const LinearShape& shape : {LinearShape{13, 31, 29}, LinearShape{64, 48, 40},
                                   LinearShape{130, 96, 200}, LinearShape{128, 256, 768}}) {
    const Case c(GetParam(), shape);
    const std::int64_t outputs = shape.tokens * shape.outputs;
    const std::int64_t inputs = shape.tokens * shape.inputs;
    const OwnedTensor before(c.type, random_values(inputs, 8, 3.0));
    for (const bool with_bias : {true, false}) {
      SCOPED_TRACE(describe(shape) + (with_bias ? ", bias" : ""));
      const Outputs out = test::on_gpu([&](Place& place) {
        Outputs all{{c.type, outputs}, {c.type, outputs}, {c.type, inputs}};
        const ConstTensor w = place.in(c.w);
        const Tensor scratch = c.scratch(place, c.type);
        linear_forward(place.stream(), {.shape = shape,
                                        .x = place.in(c.x),
                                        .w = w,
                                        .bias = with_bias ? place.in(c.bias) : ConstTensor(),
                                        .y = place.out(all[0]),
                                        .workspace = scratch,
                                        .gelu_input = place.out(all[1])});
        linear_backward_input(place.stream(), {.shape = shape,
                                               .dy = place.in(c.dy),
                                               .w = w,
                                               .dx = place.out(all[2]),
                                               .workspace = scratch,
                                               .gelu_input = place.in(before)});
        place.finish();
        return all;
      });
      const Values sum = oracle::linear_forward(shape, c.x.values(), c.w.values(),
                                                with_bias ? c.bias.values() : Values{});
      // Two roundings in two kernels; the epilogue's tanh is the hardware's, of some 2^-11.
      test::Tolerance tolerance = test::rounded_once(c.type).times(2);
      if (c.type != DType::kF32) tolerance.relative += 0x1p-9, tolerance.absolute += 0x1p-10;
      EXPECT_TRUE(test::close(out[1], sum, test::rounded_once(c.type)));
      EXPECT_TRUE(test::close(
          out[0],
          oracle::activation_forward({ActivationKind::kGelu, shape.tokens, shape.outputs}, sum),
          tolerance));
      const Values dx = oracle::linear_backward_input(shape, c.dy.values(), c.w.values());
      EXPECT_TRUE(
          test::close(out[2],
                      oracle::activation_backward(
                          {ActivationKind::kGelu, shape.tokens, shape.inputs}, before.values(), dx),
                      {tolerance.relative, 0x1p-9, tolerance.absolute}));
    }
  }
}

TEST_P(CudaLinear, ATensorThatBeginsAnywhereIsMultipliedToo) {
  const LinearShape shape{64, 64, 64};
  const OwnedTensor x(GetParam(), random_values(64 * 64 + 1, 1));
  const OwnedTensor w(GetParam(), random_values(64 * 64 + 3, 2));
  const ConstTensor x_part = ConstTensor(x).part(1, 64 * 64), w_part = ConstTensor(w).part(3, 4096);
  const Outputs out = test::on_gpu([&](Place& place) {
    Outputs outputs{{GetParam(), 64 * 64}};
    linear_forward(
        place.stream(),
        {shape,
         place.in(x_part),
         place.in(w_part),
         {},
         place.out(outputs[0]),
         place.scratch(linear_workspace_bytes(shape, GetParam(), GetParam(), place.device()))});
    place.finish();
    return outputs;
  });
  EXPECT_TRUE(test::close(
      out[0], oracle::linear_forward(shape, test::values_of(x_part), test::values_of(w_part), {}),
      test::rounded_once(GetParam())));
}

class CudaTf32 : public test::OnGpu {};

TEST_F(CudaTf32, ProductsOfF32InTf32KeepTenBitsOfWhatGoesIn) {
  const LinearShape shape{130, 96, 200};
  const Case c(DType::kF32, shape);
  const test::Work work = [&](Place& place) {
    Outputs out{{DType::kF32, shape.tokens * shape.outputs}};
    linear_forward(place.stream(), {shape,
                                    place.in(c.x),
                                    place.in(c.w),
                                    {},
                                    place.out(out[0]),
                                    c.scratch(place, DType::kF32)});
    place.finish();
    return out;
  };
  const Outputs out = test::on_gpu(work, {.allow_tf32 = true});
  const Values expected = oracle::linear_forward(shape, c.x.values(), c.w.values(), {});
  EXPECT_TRUE(test::close(out[0], expected, {0x1p-10, 0x1p-10, 0.0}));
}

}  // namespace
}  // namespace sherd::kernels
