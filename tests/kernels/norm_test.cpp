#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/oracles/oracle_norm.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/oracles/oracle_pointwise.h"
#include "tests/support/values/tensors.h"

// T tokens, D width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr Dropout kDropout{0.25f, {0x123456789abcull, 7, 3}, 0};

struct Options {
  bool branch = true;
  Dropout dropout = {};
  bool bias = true;
  bool d_residual_out = true;
  float scale = 1.0f;  // of the branch
};

struct Case {
  Case(DType dtype, NormShape shape, Options options)
      : dtype(dtype),
        shape(shape),
        options(options),
        residual(dtype, test::random_values(numel(), 1, 2.0)),
        branch(dtype, test::random_values(numel(), 2)),
        weight(dtype, test::random_values(shape.width, 3, 1.5)),
        bias(dtype, test::random_values(shape.width, 4)),
        dy(dtype, test::random_values(numel(), 5)),
        d_residual_out(dtype, test::random_values(numel(), 6)) {}

  std::int64_t numel() const { return shape.tokens * shape.width; }

  DType dtype;
  NormShape shape;
  Options options;
  OwnedTensor residual, branch, weight, bias, dy, d_residual_out;
};

// What a branch is multiplied by, element by element.
Values scaled_mask(const Options& options, std::int64_t numel) {
  Values mask = oracle::dropout_mask(options.dropout, numel);
  for (double& value : mask) value *= static_cast<double>(options.scale);
  return mask;
}

ConstTensor if_any(bool present, const OwnedTensor& tensor) {
  return present ? ConstTensor(tensor) : ConstTensor();
}

enum ForwardOutput : std::size_t { kResidual, kY, kMean, kRstd };

Outputs forward(Stream& stream, const Case& c) {
  // Without a branch the residual is what came in.
  Outputs out{c.options.branch ? OwnedTensor(c.dtype, c.numel()) : c.residual,
              {c.dtype, c.numel()},
              {DType::kF32, c.shape.tokens},
              {DType::kF32, c.shape.tokens}};
  norm_forward(stream, {.shape = c.shape,
                        .residual = c.residual,
                        .branch = if_any(c.options.branch, c.branch),
                        .branch_dropout = c.options.dropout,
                        .weight = c.weight,
                        .bias = if_any(c.options.bias, c.bias),
                        .residual_out = c.options.branch ? Tensor(out[kResidual]) : Tensor(),
                        .y = out[kY],
                        .mean = out[kMean],
                        .rstd = out[kRstd],
                        .branch_scale = c.options.scale});
  return out;
}

enum BackwardOutput : std::size_t { kDResidual, kDBranch, kDWeight, kDBias };

// `before`, if given, is the initial value of dweight and dbias, to which gradients are added.
Outputs backward(Stream& stream, const Case& c, const Outputs& kept, DType grad_dtype,
                 const Outputs* before = nullptr) {
  Outputs out{{c.dtype, c.numel()},
              {c.dtype, c.numel()},
              before ? (*before)[0] : OwnedTensor(grad_dtype, c.shape.width),
              before ? (*before)[1] : OwnedTensor(grad_dtype, c.shape.width)};
  OwnedTensor workspace = test::workspace(norm_backward_workspace_bytes(c.shape, {}));
  norm_backward(stream, {.shape = c.shape,
                         .residual = kept[kResidual],
                         .mean = kept[kMean],
                         .rstd = kept[kRstd],
                         .weight = c.weight,
                         .dy = c.dy,
                         .d_residual_out = if_any(c.options.d_residual_out, c.d_residual_out),
                         .branch_dropout = c.options.dropout,
                         .d_residual_in = out[kDResidual],
                         .d_branch = c.options.branch ? Tensor(out[kDBranch]) : Tensor(),
                         .dweight = out[kDWeight],
                         .dbias = c.options.bias ? Tensor(out[kDBias]) : Tensor(),
                         .add_to_weight_gradients = before != nullptr,
                         .workspace = workspace,
                         .branch_scale = c.options.scale});
  return out;
}

std::vector<NormShape> shapes() {
  std::vector<NormShape> shapes;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const auto& [tokens, width] : {std::pair{1, 1},
                                        {1, 7},
                                        {5, 3},
                                        {3, 64},
                                        {17, 13},
                                        {401, 96},
                                        {67, 200},
                                        {2, 1031},
                                        {1300, 20}}) {
      shapes.push_back({kind, tokens, width, 1e-5f});
      shapes.push_back({kind, tokens, width, 1e-5f, 1.0f});
    }
  }
  return shapes;
}

std::vector<Options> options() {
  return {{.branch = false, .bias = true, .d_residual_out = false},
          {.branch = true, .bias = false},
          {.branch = true, .dropout = kDropout},
          {.branch = true, .dropout = kDropout, .scale = 0.22f}};
}

std::string describe(const Case& c) {
  return fmt::format("{} T {} D {}, branch {}, p {}, bias {}",
                     c.shape.kind == NormKind::kLayerNorm ? "layernorm" : "rmsnorm", c.shape.tokens,
                     c.shape.width, c.options.branch,
                     static_cast<double>(c.options.dropout.probability), c.options.bias);
}

class Norm : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Norm, test::compute_types(), test::type_name);

TEST_P(Norm, ForwardMatchesTheOracleOnAnyNumberOfThreads) {
  for (const NormShape& shape : shapes()) {
    for (const Options& o : options()) {
      const Case c(GetParam(), shape, o);
      SCOPED_TRACE(describe(c));
      const Outputs out =
          test::on_any_number_of_threads([&](Stream& stream) { return forward(stream, c); });
      if (o.branch) {
        const Values sum =
            oracle::masked_sum(c.residual.values(), c.branch.values(), scaled_mask(o, c.numel()));
        EXPECT_TRUE(test::close(out[kResidual], sum, test::rounded_once(GetParam())));
      }
      // The norm is taken of the residual as it is stored: that is what the backward reads.
      const oracle::Norm expected = oracle::norm_forward(
          shape, out[kResidual].values(), c.weight.values(), o.bias ? c.bias.values() : Values{});
      EXPECT_TRUE(test::close(out[kY], expected.y, test::rounded_once(GetParam())));
      EXPECT_TRUE(test::close(out[kRstd], expected.rstd, test::rounded_once(DType::kF32)));
      if (shape.kind == NormKind::kLayerNorm) {
        // Means cancel: 1e-6 of numbers of order one.
        EXPECT_TRUE(test::close(out[kMean], expected.mean, {4e-6, 4e-6, 1e-6}));
      }
    }
  }
}

TEST_P(Norm, BackwardMatchesTheOracleOnAnyNumberOfThreads) {
  for (const NormShape& shape : shapes()) {
    for (const Options& o : options()) {
      const Case c(GetParam(), shape, o);
      SCOPED_TRACE(describe(c));
      const Outputs kept = forward(*test::compute_stream(), c);
      const oracle::NormGradients expected =
          oracle::norm_backward(shape, kept[kResidual].values(), c.weight.values(), c.dy.values(),
                                o.d_residual_out ? c.d_residual_out.values() : Values{});
      const Values d_branch = oracle::product(expected.d_residual, scaled_mask(o, c.numel()));
      for (const DType grad_dtype : {GetParam(), DType::kF32}) {
        const Outputs out = test::on_any_number_of_threads(
            [&](Stream& stream) { return backward(stream, c, kept, grad_dtype); });
        const test::Tolerance tolerance = test::rounded_once(GetParam());
        const test::Tolerance weight_tolerance = test::rounded_once(grad_dtype);
        // Where D is small, sums that cancel leave roundings of terms of order rstd * dy.
        test::Tolerance cancelling = tolerance;
        cancelling.absolute += 2e-6;
        EXPECT_TRUE(test::close(out[kDResidual], expected.d_residual, cancelling));
        if (o.branch) {
          // Twice: the mask may multiply the gradient before or after it is rounded.
          EXPECT_TRUE(test::close(out[kDBranch], d_branch, cancelling.times(2.0)));
        }
        EXPECT_TRUE(test::close(out[kDWeight], expected.dweight, weight_tolerance));
        if (o.bias) {
          EXPECT_TRUE(test::close(out[kDBias], expected.dbias, weight_tolerance));
        }
      }
    }
  }
}

TEST_P(Norm, WeightGradientsCanBeAddedTo) {
  const Case c(GetParam(), {NormKind::kLayerNorm, 37, 96, 1e-5f}, {});
  const Outputs before{{GetParam(), test::random_values(96, 7, 4.0)},
                       {GetParam(), test::random_values(96, 8, 4.0)}};
  const auto stream = test::compute_stream(2);
  const Outputs kept = forward(*stream, c);
  const Outputs out = backward(*stream, c, kept, GetParam(), &before);
  const oracle::NormGradients gradients =
      oracle::norm_backward(c.shape, kept[kResidual].values(), c.weight.values(), c.dy.values(),
                            c.d_residual_out.values());
  const test::Tolerance tolerance = test::rounded_once(GetParam());
  EXPECT_TRUE(
      test::close(out[kDWeight], oracle::sum({before[0].values(), gradients.dweight}), tolerance));
  EXPECT_TRUE(
      test::close(out[kDBias], oracle::sum({before[1].values(), gradients.dbias}), tolerance));
}

TEST_P(Norm, ResultsInPlaceAreTheSame) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const Case c(GetParam(), {kind, 11, 77, 1e-5f}, {.dropout = kDropout});
    const auto stream = test::compute_stream();
    const Outputs apart = forward(*stream, c);

    OwnedTensor residual = c.residual, y(c.dtype, c.numel()), mean(DType::kF32, 11),
                rstd(DType::kF32, 11);
    norm_forward(*stream, {.shape = c.shape,
                           .residual = residual,
                           .branch = c.branch,
                           .branch_dropout = kDropout,
                           .weight = c.weight,
                           .bias = c.bias,
                           .residual_out = residual,
                           .y = y,
                           .mean = mean,
                           .rstd = rstd});
    EXPECT_TRUE(test::same_bits(residual, apart[kResidual]));
    EXPECT_TRUE(test::same_bits(y, apart[kY]));

    const Outputs gradients = backward(*stream, c, apart, DType::kF32);
    OwnedTensor d_residual = c.d_residual_out, d_branch(c.dtype, c.numel());
    OwnedTensor dweight(DType::kF32, 77), dbias(DType::kF32, 77);
    OwnedTensor workspace = test::workspace(norm_backward_workspace_bytes(c.shape, {}));
    norm_backward(*stream, {.shape = c.shape,
                            .residual = residual,
                            .mean = mean,
                            .rstd = rstd,
                            .weight = c.weight,
                            .dy = c.dy,
                            .d_residual_out = d_residual,
                            .branch_dropout = kDropout,
                            .d_residual_in = d_residual,
                            .d_branch = d_branch,
                            .dweight = dweight,
                            .dbias = dbias,
                            .workspace = workspace});
    EXPECT_TRUE(test::same_bits(d_residual, gradients[kDResidual]));
    EXPECT_TRUE(test::same_bits(d_branch, gradients[kDBranch]));
    EXPECT_TRUE(test::same_bits(dweight, gradients[kDWeight]));
  }
}

TEST_P(Norm, RmsNormNeedsNoMean) {
  const Case c(GetParam(), {NormKind::kRmsNorm, 5, 33, 1e-5f}, {.bias = false});
  const auto stream = test::compute_stream();
  const Outputs with_mean = forward(*stream, c);
  OwnedTensor residual(c.dtype, c.numel()), y(c.dtype, c.numel()), rstd(DType::kF32, 5);
  norm_forward(*stream, {.shape = c.shape,
                         .residual = c.residual,
                         .branch = c.branch,
                         .branch_dropout = {},
                         .weight = c.weight,
                         .bias = {},
                         .residual_out = residual,
                         .y = y,
                         .mean = {},
                         .rstd = rstd});
  EXPECT_TRUE(test::same_bits(y, with_mean[kY]));
}

TEST_P(Norm, NaNStaysInItsRow) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    Case c(GetParam(), {kind, 3, 45, 1e-5f}, {});
    const OwnedTensor nan(GetParam(), Values{std::nan("")});
    std::memcpy(Tensor(c.branch).part(45 + 7, 1).data, nan.tensor().data,
                static_cast<std::size_t>(nan.tensor().bytes()));
    const Values y = forward(*test::compute_stream(), c)[kY].values();
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 45 == 1);
  }
}

// A row's result is its own business: the mask follows the global element, so rows computed alone
// are bit-identical to those among others.
TEST_P(Norm, RowsComputedAloneHaveTheSameBits) {
  constexpr std::int64_t kTokens = 9, kWidth = 37;
  const Case c(GetParam(), {NormKind::kLayerNorm, kTokens, kWidth, 1e-5f}, {.dropout = kDropout});
  const auto stream = test::compute_stream();
  const Outputs whole = forward(*stream, c);
  for (const std::int64_t first : {0, 1, 4}) {
    const std::int64_t rows = kTokens - first - 1, n = rows * kWidth, at = first * kWidth;
    Outputs part{{c.dtype, n}, {c.dtype, n}, {DType::kF32, rows}, {DType::kF32, rows}};
    Dropout dropout = kDropout;
    dropout.first_element = at;
    norm_forward(*stream, {.shape = {c.shape.kind, rows, kWidth, c.shape.eps},
                           .residual = ConstTensor(c.residual).part(at, n),
                           .branch = ConstTensor(c.branch).part(at, n),
                           .branch_dropout = dropout,
                           .weight = c.weight,
                           .bias = c.bias,
                           .residual_out = part[kResidual],
                           .y = part[kY],
                           .mean = part[kMean],
                           .rstd = part[kRstd]});
    EXPECT_TRUE(test::same_bits(part[kResidual], ConstTensor(whole[kResidual]).part(at, n)));
    EXPECT_TRUE(test::same_bits(part[kY], ConstTensor(whole[kY]).part(at, n)));
    EXPECT_TRUE(test::same_bits(part[kMean], ConstTensor(whole[kMean]).part(first, rows)));
    EXPECT_TRUE(test::same_bits(part[kRstd], ConstTensor(whole[kRstd]).part(first, rows)));
  }
}

TEST(NormOracle, GradientsAreCentralDifferences) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const NormShape shape{kind, 3, 5, 1e-5f};
    const Values residual = test::random_values(15, 1, 2.0), branch = test::random_values(15, 2);
    const Values weight = test::random_values(5, 3), bias = test::random_values(5, 4);
    const Values dy = test::random_values(15, 5), after = test::random_values(15, 6);
    const Values mask = oracle::dropout_mask(kDropout, 15);
    // The residual also bypasses the norm: the loss depends on both.
    const auto loss = [&](const Values& residual_, const Values& branch_, const Values& weight_,
                          const Values& bias_) {
      const Values r = oracle::masked_sum(residual_, branch_, mask);
      return oracle::dot(after, r) +
             oracle::dot(dy, oracle::norm_forward(shape, r, weight_, bias_).y);
    };
    const oracle::NormGradients gradients =
        oracle::norm_backward(shape, oracle::masked_sum(residual, branch, mask), weight, dy, after);
    EXPECT_TRUE(oracle::is_gradient(gradients.d_residual, residual, [&](const Values& v) {
      return loss(v, branch, weight, bias);
    }));
    EXPECT_TRUE(
        oracle::is_gradient(oracle::product(mask, gradients.d_residual), branch,
                            [&](const Values& v) { return loss(residual, v, weight, bias); }));
    EXPECT_TRUE(oracle::is_gradient(gradients.dweight, weight, [&](const Values& v) {
      return loss(residual, branch, v, bias);
    }));
    EXPECT_TRUE(oracle::is_gradient(
        gradients.dbias, bias, [&](const Values& v) { return loss(residual, branch, weight, v); }));
  }
}

}  // namespace
}  // namespace sherd::kernels
