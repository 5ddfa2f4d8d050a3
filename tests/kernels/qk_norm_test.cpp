#include "kernels/qk_norm.h"

#include <gtest/gtest.h>

#include "tests/support/oracle_qk_norm.h"
#include "tests/support/tensors.h"

// T tokens, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

std::vector<QkNormShape> shapes() {
  std::vector<QkNormShape> shapes;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const QkRows rows : {QkRows::kHeads, QkRows::kProjections}) {
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
                     s.rows == QkRows::kHeads ? "heads" : "projections", s.tokens, s.query_heads,
                     s.kv_heads, s.head_width, s.weight_offset);
}

enum Output : std::size_t { kY, kRaw, kMean, kRstd, kDqkv, kDQuery, kDKey };

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
  qk_norm_forward(stream, {shape, out[kY], query_weight, key_weight, out[kRaw],
                           centred ? Tensor(out[kMean]) : Tensor(), out[kRstd]});
  OwnedTensor workspace = test::workspace(qk_norm_backward_workspace_bytes(shape));
  qk_norm_backward(stream,
                   {shape, out[kRaw], centred ? ConstTensor(out[kMean]) : ConstTensor(), out[kRstd],
                    query_weight, key_weight, out[kDqkv], out[kDQuery], out[kDKey], workspace});
  return out;
}

class QkNorm : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkNorm, test::compute_types(), test::type_name);

TEST_P(QkNorm, BothDirectionsMatchTheOracleOnAnyNumberOfThreadsAndLeaveValuesAlone) {
  for (const QkNormShape& shape : shapes()) {
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
        out[kY], oracle::qk_norm_forward(shape, qkv.values(), query.values(), key.values()),
        tolerance));
    const oracle::QkNormGradients expected =
        oracle::qk_norm_backward(shape, qkv.values(), query.values(), key.values(), dy.values());
    tolerance.floor += 1e-5;  // differences of numbers of order one, relative to the whole
    EXPECT_TRUE(test::close(out[kDqkv], expected.dqkv, tolerance));
    EXPECT_TRUE(test::close(out[kDQuery], expected.query_weight, {1e-5, 1e-5, 1e-5}));
    EXPECT_TRUE(test::close(out[kDKey], expected.key_weight, {1e-5, 1e-5, 1e-5}));
  }
}

TEST(QkNormOracle, GradientsAreCentralDifferences) {
  for (const QkNormShape& shape :
       {QkNormShape{NormKind::kRmsNorm, QkRows::kHeads, 2, 2, 1, 3, 1e-5f, 1.0f},
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
