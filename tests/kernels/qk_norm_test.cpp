#include "kernels/qk_norm.h"

#include <gtest/gtest.h>

#include "tests/support/oracles/oracle_qk_norm.h"
#include "tests/support/values/tensors.h"

// T tokens, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

std::vector<QkNormShape> qk_shapes() {
  std::vector<QkNormShape> shapes;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const QkRows rows : {QkRows::kHeads, QkRows::kPerHead, QkRows::kProjections}) {
      for (const float offset : {0.0f, 1.0f}) {
        shapes.push_back({kind, rows, 1, 1, 1, 2, 1e-5f, offset});
        shapes.push_back({kind, rows, 70, 4, 2, 24, 1e-6f, offset});
        shapes.push_back({kind, rows, 13, 6, 3, 77, 1e-5f, offset});
      }
    }
  }
  return shapes;
}

std::string describe(const QkNormShape& s) {
  return fmt::format("{} {} T {} H {} G {} K {} offset {}",
                     s.kind == NormKind::kRmsNorm ? "rms" : "layer",
                     s.rows == QkRows::kHeads     ? "heads"
                     : s.rows == QkRows::kPerHead ? "per head"
                                                  : "projections",
                     s.tokens, s.query_heads, s.kv_heads, s.head_width, s.weight_offset);
}

enum Output : std::size_t { kNormY, kRaw, kNormMean, kNormRstd, kDqkv, kDQuery, kDKey };

Outputs both_ways(Stream& stream, const QkNormShape& shape, const OwnedTensor& qkv,
                  const OwnedTensor& query_weight, const OwnedTensor& key_weight,
                  const OwnedTensor& dy) {
  const DType dtype = qkv.tensor().dtype;
  const bool centred = shape.kind == NormKind::kLayerNorm;
  Outputs out{
      qkv,
      {dtype, shape.tokens * shape.raw_width()},
      {DType::kF32, Values(static_cast<std::size_t>(shape.tokens * shape.rows_per_token()))},
      {DType::kF32, shape.tokens * shape.rows_per_token()},
      dy,
      {DType::kF32, shape.query_weights()},
      {DType::kF32, shape.key_weights()}};
  qk_norm_forward(stream, {shape, out[kNormY], query_weight, key_weight, out[kRaw],
                           centred ? Tensor(out[kNormMean]) : Tensor(), out[kNormRstd]});
  OwnedTensor workspace =
      test::workspace(qk_norm_backward_workspace_bytes(shape, compute_device(stream)));
  qk_norm_backward(stream, {shape, out[kRaw], centred ? ConstTensor(out[kNormMean]) : ConstTensor(),
                            out[kNormRstd], query_weight, key_weight, out[kDqkv], out[kDQuery],
                            out[kDKey], workspace});
  return out;
}

class QkNorm : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkNorm, test::compute_types(), test::type_name);

TEST_P(QkNorm, BothDirectionsMatchTheOracleOnAnyNumberOfThreadsAndLeaveValuesAlone) {
  for (const QkNormShape& shape : qk_shapes()) {
    SCOPED_TRACE(describe(shape));
    const OwnedTensor qkv(GetParam(), test::random_values(shape.tokens * shape.packed_width(), 1));
    const OwnedTensor dy(GetParam(), test::random_values(shape.tokens * shape.packed_width(), 2));
    const OwnedTensor query(GetParam(), test::random_values(shape.query_weights(), 3, 1.5));
    const OwnedTensor key(GetParam(), test::random_values(shape.key_weights(), 4, 1.5));
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return both_ways(stream, shape, qkv, query, key, dy); });
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 4e-6;
    EXPECT_TRUE(test::close(
        out[kNormY], oracle::qk_norm_forward(shape, qkv.values(), query.values(), key.values()),
        tolerance));
    const oracle::QkNormGradients expected =
        oracle::qk_norm_backward(shape, qkv.values(), query.values(), key.values(), dy.values());
    tolerance.floor += 1e-5;  // differences of numbers of order one, relative to the whole
    EXPECT_TRUE(test::close(out[kDqkv], expected.dqkv, tolerance));
    EXPECT_TRUE(test::close(out[kDQuery], expected.query_weight, {1e-5, 1e-5, 1e-5}));
    EXPECT_TRUE(test::close(out[kDKey], expected.key_weight, {1e-5, 1e-5, 1e-5}));
  }
}

TEST_P(QkNorm, WithoutWeightsIsTheNormWithWeightsOfOne) {
  QkNormShape shape{NormKind::kRmsNorm, QkRows::kHeads, 13, 6, 3, 77, 1e-5f};
  const std::int64_t numel = shape.tokens * shape.packed_width();
  const OwnedTensor qkv(GetParam(), test::random_values(numel, 1));
  const OwnedTensor dy(GetParam(), test::random_values(numel, 2));
  const OwnedTensor ones(GetParam(), Values(77, 1.0));
  const auto stream = test::compute_stream(2);
  const Outputs with = both_ways(*stream, shape, qkv, ones, ones, dy);
  shape.weightless = true;
  OwnedTensor y = qkv, d_qkv = dy;
  OwnedTensor raw(GetParam(), shape.tokens * shape.raw_width());
  OwnedTensor rstd(DType::kF32, shape.tokens * shape.rows_per_token());
  qk_norm_forward(*stream, {.shape = shape,
                            .qkv = y,
                            .query_weight = {},
                            .key_weight = {},
                            .raw = raw,
                            .mean = {},
                            .rstd = rstd});
  OwnedTensor workspace =
      test::workspace(qk_norm_backward_workspace_bytes(shape, compute_device(*stream)));
  qk_norm_backward(*stream, {.shape = shape,
                             .raw = raw,
                             .mean = {},
                             .rstd = rstd,
                             .query_weight = {},
                             .key_weight = {},
                             .dqkv = d_qkv,
                             .d_query_weight = {},
                             .d_key_weight = {},
                             .workspace = workspace});
  stream->synchronize();
  EXPECT_TRUE(test::same_bits(y, with[kNormY]));
  EXPECT_TRUE(test::same_bits(d_qkv, with[kDqkv]));
}

// What R ranks have of rows of projections: as many query heads each, and key/value heads.
std::vector<std::int64_t> columns_of_rank(const QkNormShape& whole, int num_ranks, int rank) {
  const std::int64_t H = whole.query_heads / num_ranks, G = whole.kv_heads / num_ranks;
  std::vector<std::int64_t> columns;
  const auto add = [&](std::int64_t head, std::int64_t heads) {
    for (std::int64_t i = 0; i < heads * whole.head_width; ++i) {
      columns.push_back(head * whole.head_width + i);
    }
  };
  add(rank * H, H);
  add(whole.query_heads + rank * G, G);
  add(whole.query_heads + whole.kv_heads + rank * G, G);
  return columns;
}

// Some columns of every row.
Values of_columns(const Values& rows, std::int64_t width,
                  const std::vector<std::int64_t>& columns) {
  Values part;
  for (std::int64_t first = 0; first < std::ssize(rows); first += width) {
    for (const std::int64_t column : columns) {
      part.push_back(rows[static_cast<std::size_t>(first + column)]);
    }
  }
  return part;
}

Values part_of(const Values& values, std::int64_t first, std::int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

// Calls `part(rank, sums)` for each rank and returns what the ranks' sums come to.
OwnedTensor added_up(int num_ranks, std::int64_t count,
                     const std::function<void(std::size_t, Tensor)>& part) {
  Values total(static_cast<std::size_t>(count));
  for (std::size_t r = 0; r < static_cast<std::size_t>(num_ranks); ++r) {
    OwnedTensor sums(DType::kF32, count);
    part(r, sums);
    const Values own = sums.values();
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += own[i];
  }
  return {DType::kF32, total};
}

TEST_P(QkNorm, OfRowsThatRanksHavePartsOfMatchesTheOracleOfWholeRows) {
  constexpr int kRanks = 3;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    const QkNormShape whole{kind, QkRows::kProjections, 13, 6, 3, 77, 1e-5f, 1.0f};
    const std::int64_t width = whole.packed_width(), K = whole.head_width, T = whole.tokens;
    const bool centred = kind == NormKind::kLayerNorm;
    QkNormShape own = whole;
    own.query_heads = 2, own.kv_heads = 1, own.all_query_heads = 6, own.all_kv_heads = 3;
    // Far from zero, so that a mean of a part isn't the row's.
    Values all_qkv = test::random_values(T * width, 1);
    for (std::size_t i = 0; i < all_qkv.size(); ++i) {
      all_qkv[i] += static_cast<double>(i % static_cast<std::size_t>(width)) / 100.0;
    }
    all_qkv = test::rounded(GetParam(), all_qkv);
    const Values all_dy = test::rounded(GetParam(), test::random_values(T * width, 2));
    const Values all_query = test::rounded(GetParam(), test::random_values(6 * K, 3, 1.5));
    const Values all_key = test::rounded(GetParam(), test::random_values(3 * K, 4, 1.5));
    const auto stream = test::compute_stream();
    std::vector<std::vector<std::int64_t>> columns;
    Outputs qkv, dqkv, query, key, raw, mean, rstd, d_query, d_key;
    for (int r = 0; r < kRanks; ++r) {
      columns.push_back(columns_of_rank(whole, kRanks, r));
      qkv.emplace_back(GetParam(), of_columns(all_qkv, width, columns.back()));
      dqkv.emplace_back(GetParam(), of_columns(all_dy, width, columns.back()));
      query.emplace_back(GetParam(), part_of(all_query, 2 * r * K, 2 * K));
      key.emplace_back(GetParam(), part_of(all_key, r * K, K));
      raw.emplace_back(GetParam(), T * own.raw_width());
      mean.emplace_back(DType::kF32, 2 * T);
      rstd.emplace_back(DType::kF32, 2 * T);
      d_query.emplace_back(DType::kF32, 2 * K);
      d_key.emplace_back(DType::kF32, K);
    }
    const OwnedTensor sums = added_up(kRanks, 2 * T, [&](std::size_t r, const Tensor& out) {
      qk_norm_sums(*stream, {own, qkv[r], {}, out});
    });
    const OwnedTensor squares =
        !centred ? sums : added_up(kRanks, 2 * T, [&](std::size_t r, const Tensor& out) {
          qk_norm_sums(*stream, {own, qkv[r], sums, out});
        });
    std::vector<QkNormBackward> backward;
    OwnedTensor workspace =
        test::workspace(qk_norm_backward_workspace_bytes(own, compute_device(*stream)));
    for (std::size_t r = 0; r < kRanks; ++r) {
      const Tensor kept_mean = centred ? Tensor(mean[r]) : Tensor();
      qk_norm_forward(*stream,
                      {own, qkv[r], query[r], key[r], raw[r], kept_mean, rstd[r], sums, squares});
      backward.push_back({own, raw[r], kept_mean, rstd[r], query[r], key[r], dqkv[r], d_query[r],
                          d_key[r], workspace});
    }
    OwnedTensor of_gradients = added_up(kRanks, 4 * T, [&](std::size_t r, const Tensor& out) {
      QkNormBackward args = backward[r];
      args.row_sums = out;
      qk_norm_backward_sums(*stream, args);
    });
    const Values y = oracle::qk_norm_forward(whole, all_qkv, all_query, all_key);
    const oracle::QkNormGradients expected =
        oracle::qk_norm_backward(whole, all_qkv, all_query, all_key, all_dy);
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 4e-6;
    tolerance.floor += 1e-5;
    for (std::size_t r = 0; r < kRanks; ++r) {
      backward[r].row_sums = of_gradients;
      qk_norm_backward(*stream, backward[r]);
      EXPECT_TRUE(test::close(qkv[r], of_columns(y, width, columns[r]), tolerance)) << "rank " << r;
      EXPECT_TRUE(test::close(dqkv[r], of_columns(expected.dqkv, width, columns[r]), tolerance))
          << "rank " << r;
      const auto at = static_cast<std::int64_t>(r);
      EXPECT_TRUE(test::close(d_query[r], part_of(expected.query_weight, 2 * at * K, 2 * K),
                              {1e-5, 1e-5, 1e-5}));
      EXPECT_TRUE(
          test::close(d_key[r], part_of(expected.key_weight, at * K, K), {1e-5, 1e-5, 1e-5}));
    }
  }
}

TEST(QkNormOracle, GradientsAreCentralDifferences) {
  for (const QkNormShape& shape :
       {QkNormShape{NormKind::kRmsNorm, QkRows::kHeads, 2, 2, 1, 3, 1e-5f, 1.0f},
        QkNormShape{NormKind::kLayerNorm, QkRows::kPerHead, 2, 2, 1, 3, 1e-5f, 0.0f},
        QkNormShape{NormKind::kLayerNorm, QkRows::kProjections, 2, 2, 1, 3, 1e-5f, 0.0f}}) {
    const std::int64_t numel = shape.tokens * shape.packed_width();
    const Values qkv = test::random_values(numel, 1), direction = test::random_values(numel, 2);
    const Values query = test::random_values(shape.query_weights(), 3);
    const Values key = test::random_values(shape.key_weights(), 4);
    EXPECT_TRUE(oracle::is_gradient(
        oracle::qk_norm_backward(shape, qkv, query, key, direction).dqkv, qkv,
        [&](const Values& v) {
          return oracle::dot(direction, oracle::qk_norm_forward(shape, v, query, key));
        }));
  }
}

}  // namespace
}  // namespace sherd::kernels
