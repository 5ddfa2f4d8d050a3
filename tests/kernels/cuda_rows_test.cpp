// Kernels that sum over rows and columns, on a GPU: against the double oracle and the CPU.
#include <gtest/gtest.h>

#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/token.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_norm.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/oracles/oracle_qk_norm.h"
#include "tests/support/oracles/oracle_token.h"

// T tokens, D width, V vocabulary.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

constexpr Dropout kDropout{0.25f, {0x123456789abcull, 7, 3}, 0};

class CudaRows : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaRows, test::compute_types(), test::type_name);

struct NormCase {
  NormKind kind;
  std::int64_t tokens, width;
  bool branch, bias;
  Dropout dropout;
  float weight_offset = 0.0f, branch_scale = 1.0f;
};

std::vector<NormCase> norm_cases() {
  std::vector<NormCase> cases;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const auto& [tokens, width] : {std::pair{1, 1},
                                        {5, 3},
                                        {3, 64},
                                        {17, 13},
                                        {401, 96},
                                        {67, 200},
                                        {2, 1031},
                                        {9, 4096},
                                        {3, 5120}}) {
      cases.push_back({kind, tokens, width, false, true, {}});
      cases.push_back({kind, tokens, width, true, false, {}});
      cases.push_back({kind, tokens, width, true, true, kDropout});
      cases.push_back({kind, tokens, width, true, false, kDropout, 1.0f, 0.3f});
    }
  }
  return cases;
}

TEST_P(CudaRows, NormsMatchTheOracleInBothDirections) {
  const DType type = GetParam();
  for (const NormCase& c : norm_cases()) {
    SCOPED_TRACE(fmt::format("{} T {} D {} branch {}", c.kind == NormKind::kRmsNorm ? "rms" : "ln",
                             c.tokens, c.width, c.branch));
    const NormShape shape{c.kind, c.tokens, c.width, 1e-5f, c.weight_offset};
    const std::int64_t numel = c.tokens * c.width;
    const OwnedTensor residual(type, random_values(numel, 1, 2.0));
    const OwnedTensor branch(type, random_values(numel, 2));
    const OwnedTensor weight(type, random_values(c.width, 3, 1.5));
    const OwnedTensor bias(type, random_values(c.width, 4));
    const OwnedTensor dy(type, random_values(numel, 5));
    const OwnedTensor later(type, random_values(numel, 6));
    enum : std::size_t { kSum, kY, kMean, kRstd, kDResidual, kDBranch, kDWeight, kDBias };
    const test::Work work = [&](Place& place) {
      Outputs out{{type, numel}, {type, numel}, {DType::kF32, c.tokens}, {DType::kF32, c.tokens},
                  {type, numel}, {type, numel}, {DType::kF32, c.width},  {DType::kF32, c.width}};
      const ConstTensor none, w = place.in(weight), in = place.in(residual);
      const Tensor sum = place.out(out[kSum]);
      const Tensor mean = place.out(out[kMean]), rstd = place.out(out[kRstd]);
      norm_forward(place.stream(), {.shape = shape,
                                    .residual = in,
                                    .branch = c.branch ? place.in(branch) : none,
                                    .branch_dropout = c.dropout,
                                    .weight = w,
                                    .bias = c.bias ? place.in(bias) : none,
                                    .residual_out = c.branch ? sum : Tensor(),
                                    .y = place.out(out[kY]),
                                    .mean = mean,
                                    .rstd = rstd,
                                    .branch_scale = c.branch_scale});
      norm_backward(
          place.stream(),
          {.shape = shape,
           .residual = c.branch ? ConstTensor(sum) : in,
           .mean = mean,
           .rstd = rstd,
           .weight = w,
           .dy = place.in(dy),
           .d_residual_out = c.branch ? place.in(later) : none,
           .branch_dropout = c.dropout,
           .d_residual_in = place.out(out[kDResidual]),
           .d_branch = c.branch ? place.out(out[kDBranch]) : Tensor(),
           .dweight = place.out(out[kDWeight]),
           .dbias = c.bias ? place.out(out[kDBias]) : Tensor(),
           .workspace = place.scratch(norm_backward_workspace_bytes(shape, place.device())),
           .branch_scale = c.branch_scale});
      place.finish();
      return out;
    };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    const test::Tolerance tolerance = test::rounded_once(type), f32{4e-6, 4e-6, 1e-6};
    if (c.branch) {
      EXPECT_TRUE(test::same_bits(gpu[kSum], cpu[kSum]));
    }
    const Values stored = c.branch ? cpu[kSum].values() : residual.values();
    const oracle::Norm forward =
        oracle::norm_forward(shape, stored, weight.values(), c.bias ? bias.values() : Values{});
    EXPECT_TRUE(test::close(gpu[kY], forward.y, tolerance));
    EXPECT_TRUE(test::close(gpu[kMean], forward.mean, f32));
    EXPECT_TRUE(test::close(gpu[kRstd], forward.rstd, f32));
    const oracle::NormGradients backward = oracle::norm_backward(
        shape, stored, weight.values(), dy.values(), c.branch ? later.values() : Values{});
    // A gradient is a difference: 1e-6 of numbers of order one may be left, all of it for width 1.
    test::Tolerance cancelling = tolerance.times(2);
    cancelling.absolute += 1e-6;
    EXPECT_TRUE(test::close(gpu[kDResidual], backward.d_residual, cancelling));
    EXPECT_TRUE(test::close(gpu[kDWeight], backward.dweight, {2e-5, 2e-5, 1e-6}));
    if (c.bias) {
      EXPECT_TRUE(test::close(gpu[kDBias], backward.dbias, {2e-5, 2e-5, 1e-6}));
    }
    if (c.branch) {
      EXPECT_TRUE(test::close(gpu[kDBranch], cpu[kDBranch].values(), cancelling));
    }
  }
}

TEST_P(CudaRows, NormGradientsAddToWhatStandsAndTakeItsPlace) {
  const DType type = GetParam();
  const NormShape shape{NormKind::kLayerNorm, 33, 72, 1e-5f};
  const std::int64_t numel = shape.tokens * shape.width;
  const OwnedTensor residual(type, random_values(numel, 1, 2.0)), dy(type, random_values(numel, 2));
  const OwnedTensor weight(type, random_values(shape.width, 3));
  const OwnedTensor mean(DType::kF32, random_values(shape.tokens, 4, 0.1));
  const OwnedTensor rstd(DType::kF32, Values(33, 0.9)), later(type, random_values(numel, 5));
  const OwnedTensor before(DType::kF32, random_values(shape.width, 6));
  const test::Work work = [&](Place& place) {
    Outputs out{later, before, before};
    const Tensor d_residual = place.out(out[0]);  // of r comes in, of the residual goes out
    norm_backward(
        place.stream(),
        {.shape = shape,
         .residual = place.in(residual),
         .mean = place.in(mean),
         .rstd = place.in(rstd),
         .weight = place.in(weight),
         .dy = place.in(dy),
         .d_residual_out = d_residual,
         .branch_dropout = {},
         .d_residual_in = d_residual,
         .d_branch = {},
         .dweight = place.out(out[1]),
         .dbias = place.out(out[2]),
         .add_to_weight_gradients = true,
         .workspace = place.scratch(norm_backward_workspace_bytes(shape, place.device()))});
    place.finish();
    return out;
  };
  const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
  EXPECT_TRUE(test::close(gpu[0], cpu[0].values(), test::rounded_once(type).times(2)));
  const test::Tolerance sums{4e-6, 4e-6, 1e-6};  // rows are added in another order
  EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), sums));
  EXPECT_TRUE(test::close(gpu[2], cpu[2].values(), sums));
}

TEST_P(CudaRows, NormsOfQueriesAndKeysMatchTheOracleInBothDirections) {
  const DType type = GetParam();
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const QkRows rows : {QkRows::kHeads, QkRows::kPerHead, QkRows::kProjections}) {
      for (const QkNormShape& shape : {QkNormShape{kind, rows, 1, 1, 1, 2, 1e-5f, 0.0f},
                                       QkNormShape{kind, rows, 70, 4, 2, 24, 1e-6f, 1.0f},
                                       QkNormShape{kind, rows, 13, 6, 3, 200, 1e-5f, 0.0f}}) {
        SCOPED_TRACE(fmt::format("layer {} rows {} T {}", kind == NormKind::kLayerNorm,
                                 static_cast<int>(rows), shape.tokens));
        const std::int64_t numel = shape.tokens * shape.packed_width();
        const std::int64_t statistics = shape.tokens * shape.rows_per_token();
        const OwnedTensor qkv(type, random_values(numel, 1)), dy(type, random_values(numel, 2));
        const OwnedTensor query(type, random_values(shape.query_weights(), 3, 1.5));
        const OwnedTensor key(type, random_values(shape.key_weights(), 4, 1.5));
        const test::Work work = [&](Place& place) {
          Outputs out{qkv,
                      {type, shape.tokens * shape.raw_width()},
                      {DType::kF32, statistics},
                      {DType::kF32, statistics},
                      dy,
                      {DType::kF32, shape.query_weights()},
                      {DType::kF32, shape.key_weights()}};
          const bool centred = kind == NormKind::kLayerNorm;
          const ConstTensor q = place.in(query), k = place.in(key);
          const Tensor raw = place.out(out[1]), rstd = place.out(out[3]);
          const Tensor mean = centred ? place.out(out[2]) : Tensor();
          qk_norm_forward(place.stream(), {shape, place.out(out[0]), q, k, raw, mean, rstd});
          qk_norm_backward(
              place.stream(),
              {shape, raw, mean, rstd, q, k, place.out(out[4]), place.out(out[5]),
               place.out(out[6]),
               place.scratch(qk_norm_backward_workspace_bytes(shape, place.device()))});
          place.finish();
          return out;
        };
        const Outputs gpu = test::on_gpu(work);
        EXPECT_TRUE(test::same_bits(gpu[1], test::on_cpu(work)[1]));
        test::Tolerance tolerance = test::rounded_once(type);
        tolerance.absolute += 4e-6;
        EXPECT_TRUE(test::close(
            gpu[0], oracle::qk_norm_forward(shape, qkv.values(), query.values(), key.values()),
            tolerance));
        const oracle::QkNormGradients expected = oracle::qk_norm_backward(
            shape, qkv.values(), query.values(), key.values(), dy.values());
        tolerance.floor += 1e-5;  // as on the CPU
        EXPECT_TRUE(test::close(gpu[4], expected.dqkv, tolerance));
        EXPECT_TRUE(test::close(gpu[5], expected.query_weight, {1e-5, 1e-5, 1e-5}));
        EXPECT_TRUE(test::close(gpu[6], expected.key_weight, {1e-5, 1e-5, 1e-5}));
      }
    }
  }
}

const oracle::EmbeddingShape kEmbeddings[] = {{1, 1, 1, 1, 1},
                                              {1, 7, 5, 3, 9},
                                              {3, 13, 37, 11, 0},
                                              {2, 65, 96, 50, 65},
                                              {2, 1030, 48, 7, 1031}};  // long runs of one token

TEST_P(CudaRows, EmbeddingsHaveTheCpusBitsInBothDirections) {
  const DType type = GetParam();
  for (const oracle::EmbeddingShape& s : kEmbeddings) {
    SCOPED_TRACE(
        fmt::format("B {} S {} D {} V {}", s.sequences, s.positions, s.width, s.vocab_size));
    const std::int64_t T = s.sequences * s.positions, table = s.vocab_size * s.width;
    const OwnedTensor tokens(test::random_tokens(T, s.vocab_size, 1));
    const OwnedTensor token_weight(type, random_values(table, 2));
    const OwnedTensor position_weight(type, random_values(s.position_rows * s.width, 3));
    const OwnedTensor dy(type, random_values(T * s.width, 4));
    const OwnedTensor head(DType::kF32, random_values(table, 5));
    for (const Dropout& dropout : {Dropout{}, kDropout}) {
      for (const bool add : {false, true}) {
        const float scale = add ? 1.0f : 6.5f;
        const test::Work work = [&](Place& place) {
          Outputs out{{type, T * s.width}, head, {DType::kF32, s.position_rows * s.width}};
          const ConstTensor ids = place.in(tokens);
          const bool positions = s.position_rows > 0;
          embedding_forward(
              place.stream(),
              {.sequences = s.sequences,
               .positions = s.positions,
               .width = s.width,
               .vocab_size = s.vocab_size,
               .tokens = ids,
               .token_weight = place.in(token_weight),
               .position_weight = positions ? place.in(position_weight) : ConstTensor(),
               .dropout = dropout,
               .y = place.out(out[0]),
               .scale = scale});
          embedding_backward(place.stream(),
                             {.sequences = s.sequences,
                              .positions = s.positions,
                              .width = s.width,
                              .vocab_size = s.vocab_size,
                              .position_rows = s.position_rows,
                              .tokens = ids,
                              .dy = place.in(dy),
                              .dropout = dropout,
                              .d_token_weight = place.out(out[1]),
                              .d_position_weight = positions ? place.out(out[2]) : Tensor(),
                              .add_to_token_gradient = add,
                              .workspace = place.scratch(embedding_backward_workspace_bytes(
                                  T, s.vocab_size, place.device())),
                              .scale = scale});
          place.finish();
          return out;
        };
        EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
