#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/thread_team.h"
#include "tests/support/oracles/oracle_attention.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/values/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

const AttentionShape kShapes[] = {
    {1, 1, 1, 1, 1},   {2, 7, 4, 2, 5},    {1, 64, 1, 1, 16},  {2, 65, 4, 4, 8},
    {1, 65, 6, 2, 64}, {1, 150, 4, 2, 24}, {1, 150, 1, 1, 33}, {2, 130, 6, 2, 7},
};

// The forward takes 24 queries at a time; the backward 192 keys, and for each 256 queries. These
// have two of each and three, whole and begun.
const AttentionShape kLongShapes[] = {
    {1, 193, 4, 2, 16}, {2, 385, 6, 2, 8}, {1, 400, 4, 1, 24}, {1, 577, 2, 1, 5}};

// Windows of one key, of fewer than a strip, of a tile and a bit, of nearly all; caps that bite.
const AttentionShape kForms[] = {
    {1, 70, 4, 2, 8, 0.0f, 1},          {2, 67, 2, 1, 12, 0.0f, 2},
    {1, 400, 4, 2, 8, 0.5f, 7},         {1, 577, 2, 1, 16, 0.0f, 33},
    {1, 450, 2, 2, 8, 0.0f, 200, 1.5f}, {1, 193, 2, 1, 24, 0.25f, 192, 2.0f},
    {1, 90, 4, 1, 16, 0.7f, 0, 1.0f},   {1, 65, 1, 1, 8, 0.0f, 65}};

constexpr Dropout kNone{};
constexpr Dropout kDropout{0.3f, {0xfeedfacecafeull, 11, 5}, 0};

std::string describe(const AttentionShape& shape) {
  return fmt::format("B {} S {} H {} G {} K {} scale {} window {} cap {}", shape.sequences,
                     shape.positions, shape.query_heads, shape.kv_heads, shape.head_width,
                     shape.scale, shape.window, shape.softcap);
}

Values mask_of(const AttentionShape& shape, const Dropout& dropout) {
  return oracle::dropout_mask(dropout, shape.tokens() * shape.query_heads * shape.positions);
}

std::int64_t out_numel(const AttentionShape& shape) {
  return shape.tokens() * shape.query_heads * shape.head_width;
}

OwnedTensor scratch(Stream& stream, const AttentionShape& shape, DType dtype) {
  return test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
}

enum Output : std::size_t { kOut, kLse, kDqkv };

Outputs both_ways(Stream& stream, const AttentionShape& shape, ConstTensor qkv, ConstTensor dout,
                  const Dropout& dropout) {
  Outputs out{{qkv.dtype, out_numel(shape)},
              {DType::kF32, shape.tokens() * shape.query_heads},
              {qkv.dtype, qkv.numel}};
  OwnedTensor forward_workspace = scratch(stream, shape, qkv.dtype);
  attention_forward(stream, {.shape = shape,
                             .qkv = qkv,
                             .dropout = dropout,
                             .out = out[kOut],
                             .lse = out[kLse],
                             .workspace = forward_workspace});
  OwnedTensor backward_workspace = scratch(stream, shape, qkv.dtype);
  attention_backward(stream, {.shape = shape,
                              .qkv = qkv,
                              .out = out[kOut],
                              .lse = out[kLse],
                              .dout = dout,
                              .dropout = dropout,
                              .dqkv = out[kDqkv],
                              .workspace = backward_workspace});
  return out;
}

class Attention : public testing::TestWithParam<DType> {
 protected:
  void matches_the_oracle(const AttentionShape& shape, const Dropout& dropout, double scale) {
    SCOPED_TRACE(describe(shape));
    const OwnedTensor qkv(GetParam(),
                          test::random_values(shape.tokens() * shape.packed_width(), 1, scale));
    const OwnedTensor dout(GetParam(), test::random_values(out_numel(shape), 2));
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return both_ways(stream, shape, qkv, dout, dropout); });

    const Values mask = mask_of(shape, dropout);
    const oracle::Attention expected = oracle::attention_forward(shape, qkv.values(), mask);
    const test::Tolerance tolerance = test::attended(GetParam());
    EXPECT_TRUE(test::close(out[kOut], expected.out, tolerance, expected.magnitudes));
    EXPECT_TRUE(test::close(out[kLse], expected.lse, {4e-6, 4e-6, 1e-6}));
    // A gradient is a difference dp - D of sums in f32: 1e-6 of numbers of order one may be left.
    test::Tolerance cancelling = tolerance;
    cancelling.absolute += 1e-6;
    Values magnitudes;
    const Values gradient = oracle::attention_backward(
        shape, qkv.values(), mask, out[kOut].values(), dout.values(), &magnitudes);
    EXPECT_TRUE(test::close(out[kDqkv], gradient, cancelling, magnitudes));
  }
};
INSTANTIATE_TEST_SUITE_P(Types, Attention, test::compute_types(), test::type_name);

TEST_P(Attention, BothDirectionsMatchTheOracleOnAnyNumberOfThreads) {
  for (const AttentionShape& shape : kShapes) matches_the_oracle(shape, kNone, 1.5);
}

TEST_P(Attention, DropoutMatchesTheOracleWithTheMaskOfTheDefinition) {
  for (const AttentionShape& shape : kShapes) {
    Dropout dropout = kDropout;
    // Row 5 of the batch; then past 2^32 elements.
    dropout.first_element = 5 * shape.query_heads * shape.positions * shape.positions;
    matches_the_oracle(shape, dropout, 1.5);
  }
  Dropout far = kDropout;
  far.first_element = (std::int64_t{1} << 33) + 3;
  matches_the_oracle({1, 13, 2, 1, 8}, far, 1.5);
}

TEST_P(Attention, SequencesOfManyTilesMatchTheOracleWithAndWithoutDropout) {
  for (const AttentionShape& shape : kLongShapes) {
    matches_the_oracle(shape, kNone, 1.5);
    Dropout dropout = kDropout;
    dropout.first_element = 2 * shape.query_heads * shape.positions * shape.positions;
    matches_the_oracle(shape, dropout, 1.5);
  }
}

TEST_P(Attention, WindowsSoftCapsAndScalesMatchTheOracleWithAndWithoutDropout) {
  for (const AttentionShape& shape : kForms) {
    matches_the_oracle(shape, kNone, 1.5);
    Dropout dropout = kDropout;
    dropout.first_element = 2 * shape.query_heads * shape.positions * shape.positions;
    matches_the_oracle(shape, dropout, 1.5);
  }
}

TEST_P(Attention, AWindowAsLongAsTheRowHasTheBitsOfNone) {
  const AttentionShape plain{1, 290, 4, 2, 12};
  const OwnedTensor qkv(GetParam(), test::random_values(plain.tokens() * plain.packed_width(), 1));
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(plain), 2));
  const auto stream = test::compute_stream();
  const Outputs expected = both_ways(*stream, plain, qkv, dout, kNone);
  for (const std::int64_t window : {290, 291, 5000}) {
    AttentionShape shape = plain;
    shape.window = window;
    const Outputs out = both_ways(*stream, shape, qkv, dout, kNone);
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(test::same_bits(out[i], expected[i]));
  }
}

TEST_P(Attention, WhatAWindowLeftBehindChangesNothing) {
  const AttentionShape shape{1, 300, 2, 1, 8, 0.0f, 40};
  Values values = test::random_values(shape.tokens() * shape.packed_width(), 1);
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(shape), 2));
  const auto stream = test::compute_stream();
  const Outputs before = both_ways(*stream, shape, OwnedTensor(GetParam(), values), dout, kNone);
  constexpr std::int64_t kChanged = 200;  // positions that no query from 239 on sees
  for (std::size_t i = 0; i < kChanged * static_cast<std::size_t>(shape.packed_width()); ++i) {
    values[i] = -3.0 * values[i] + 1.0;
  }
  const Outputs after = both_ways(*stream, shape, OwnedTensor(GetParam(), values), dout, kNone);
  const std::int64_t row = shape.query_heads * shape.head_width;
  const auto from = [&](const Outputs& outputs, std::int64_t position) {
    return ConstTensor(outputs[kOut]).part(position * row, (shape.positions - position) * row);
  };
  EXPECT_TRUE(test::same_bits(from(after, 239), from(before, 239)));
  EXPECT_FALSE(test::same_bits(from(after, 238), from(before, 238)));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  // Scores up to 20 * 20 * sqrt(K): their exponentials overflow unless the maximum goes first.
  const AttentionShape shape{1, 70, 2, 1, 16};
  const OwnedTensor qkv(GetParam(),
                        test::random_values(shape.tokens() * shape.packed_width(), 1, 20.0));
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(shape), 2));
  const Outputs out = both_ways(*test::compute_stream(), shape, qkv, dout, kNone);
  const Values mask = mask_of(shape, kNone);
  const oracle::Attention expected = oracle::attention_forward(shape, qkv.values(), mask);
  // A score of 400 carries an f32 error of 400 * 2^-24 * some roundings, about 1e-4, into exp.
  test::Tolerance tolerance = test::attended(GetParam());
  tolerance.relative += 2e-4;
  tolerance.floor += 2e-4;
  EXPECT_TRUE(test::close(out[kOut], expected.out, tolerance, expected.magnitudes));
  EXPECT_TRUE(test::close(out[kLse], expected.lse, {1e-6, 1e-6, 0.0}));
  Values magnitudes;
  const Values gradient = oracle::attention_backward(shape, qkv.values(), mask, out[kOut].values(),
                                                     dout.values(), &magnitudes);
  EXPECT_TRUE(test::close(out[kDqkv], gradient, tolerance, magnitudes));
}

TEST_P(Attention, TheFutureChangesNothing) {
  const AttentionShape shape{1, 66, 2, 1, 8};
  Values values = test::random_values(shape.tokens() * shape.packed_width(), 1);
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(shape), 2));
  const auto stream = test::compute_stream();
  const Outputs before = both_ways(*stream, shape, OwnedTensor(GetParam(), values), dout, kNone);
  constexpr std::int64_t kPast = 40;
  for (std::size_t i = kPast * static_cast<std::size_t>(shape.packed_width()); i < values.size();
       ++i) {
    values[i] = -3.0 * values[i] + 1.0;
  }
  const Outputs after = both_ways(*stream, shape, OwnedTensor(GetParam(), values), dout, kNone);
  const std::int64_t n = kPast * shape.query_heads * shape.head_width;
  EXPECT_TRUE(
      test::same_bits(ConstTensor(after[kOut]).part(0, n), ConstTensor(before[kOut]).part(0, n)));
}

// The mask follows the global row, so a sequence's results are bit-identical in any micro-batch.
TEST_P(Attention, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  const AttentionShape all{3, 67, 4, 2, 12}, one{1, 67, 4, 2, 12};
  const OwnedTensor qkv(GetParam(), test::random_values(all.tokens() * all.packed_width(), 1));
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(all), 2));
  const auto stream = test::compute_stream(2);
  const Outputs together = both_ways(*stream, all, qkv, dout, kDropout);
  const std::int64_t n = qkv.numel() / 3, m = dout.numel() / 3, rows = 67 * 4;
  for (std::int64_t b = 0; b < 3; ++b) {
    Dropout dropout = kDropout;
    dropout.first_element = b * 4 * 67 * 67;
    const Outputs alone = both_ways(*stream, one, ConstTensor(qkv).part(b * n, n),
                                    ConstTensor(dout).part(b * m, m), dropout);
    EXPECT_TRUE(test::same_bits(alone[kOut], ConstTensor(together[kOut]).part(b * m, m)));
    EXPECT_TRUE(test::same_bits(alone[kLse], ConstTensor(together[kLse]).part(b * rows, rows)));
    EXPECT_TRUE(test::same_bits(alone[kDqkv], ConstTensor(together[kDqkv]).part(b * n, n)));
  }
}

TEST_P(Attention, NaNReachesEveryQueryThatSeesIt) {
  const AttentionShape shape{1, 70, 1, 1, 8};
  constexpr std::int64_t kBroken = 33;
  for (const std::int64_t part : {0, 8, 16}) {  // in a query, a key, a value
    Values values = test::random_values(shape.tokens() * shape.packed_width(), 1);
    values[static_cast<std::size_t>(kBroken * shape.packed_width() + part)] = std::nan("");
    const OwnedTensor dout(GetParam(), Values(static_cast<std::size_t>(out_numel(shape)), 1.0));
    const Outputs out =
        both_ways(*test::compute_stream(), shape, OwnedTensor(GetParam(), values), dout, kNone);
    const Values result = out[kOut].values();
    // Others of the same tile may catch it too: they multiply it by a probability of zero.
    for (std::int64_t q = kBroken; q < (part == 0 ? kBroken + 1 : shape.positions); ++q) {
      EXPECT_TRUE(std::isnan(result[static_cast<std::size_t>(q * shape.head_width)]))
          << "query " << q << ", part " << part;
    }
    EXPECT_FALSE(std::isfinite(oracle::dot(out[kDqkv].values(), out[kDqkv].values())));
  }
}

TEST(AttentionWorkspace, GrowsWithThePositionsNotWithTheirSquare) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const ComputeDevice cpu{DeviceKind::kCpu, 2};
    const std::int64_t once = attention_workspace_bytes({1, 4096, 8, 8, 64}, dtype, cpu);
    const std::int64_t twice = attention_workspace_bytes({1, 8192, 8, 8, 64}, dtype, cpu);
    EXPECT_LE(twice, 2 * once + 4096);
    EXPECT_LT(twice, std::int64_t{4} * 8192 * 8192);
  }
}

TEST(AttentionOracle, IsTheMeanOfTheValuesWhereAllScoresAreEqual) {
  const AttentionShape shape{1, 4, 1, 1, 2};
  Values qkv(24, 0.0);  // queries and keys zero
  for (std::size_t t = 0; t < 4; ++t) qkv[t * 6 + 4] = static_cast<double>(t);
  const oracle::Attention result = oracle::attention_forward(shape, qkv, mask_of(shape, kNone));
  for (std::size_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(result.out[t * 2], 0.5 * static_cast<double>(t), 1e-14);
    EXPECT_NEAR(result.lse[t], std::log(static_cast<double>(t + 1)), 1e-14);
  }
}

TEST(AttentionOracle, GradientsAreCentralDifferences) {
  for (const Dropout& dropout : {kNone, kDropout}) {
    for (const AttentionShape& shape :
         {AttentionShape{2, 4, 1, 1, 3}, AttentionShape{1, 5, 4, 2, 2},
          AttentionShape{1, 6, 2, 1, 3, 0.8f, 3, 1.5f}}) {
      SCOPED_TRACE(describe(shape));
      const Values mask = mask_of(shape, dropout);
      const Values qkv = test::random_values(shape.tokens() * shape.packed_width(), 1);
      const Values direction = test::random_values(out_numel(shape), 2);
      const Values out = oracle::attention_forward(shape, qkv, mask).out;
      EXPECT_TRUE(oracle::is_gradient(
          oracle::attention_backward(shape, qkv, mask, out, direction), qkv, [&](const Values& v) {
            return oracle::dot(direction, oracle::attention_forward(shape, v, mask).out);
          }));
    }
  }
}

// Query heads [first, first + count) of six, and the key/value heads that they read, as a model of their own.
struct SomeHeads {
  AttentionShape shape;
  std::vector<std::int64_t> columns;  // of the whole's packed rows
};

SomeHeads some_heads(const AttentionShape& whole, std::int64_t first, std::int64_t count) {
  const std::int64_t group = whole.query_heads / whole.kv_heads, K = whole.head_width;
  const std::int64_t first_kv = first / group;
  SomeHeads heads{whole, {}};
  heads.shape.query_heads = count;
  heads.shape.kv_heads = (first + count - 1) / group - first_kv + 1;
  heads.shape.first_query_head = first;
  heads.shape.all_query_heads = whole.query_heads;
  const auto add = [&](std::int64_t head, std::int64_t heads_count) {
    for (std::int64_t i = 0; i < heads_count * K; ++i) heads.columns.push_back(head * K + i);
  };
  add(first, count);
  add(whole.query_heads + first_kv, heads.shape.kv_heads);
  add(whole.query_heads + whole.kv_heads + first_kv, heads.shape.kv_heads);
  return heads;
}

Values columns_of(const Values& rows, std::int64_t width,
                  const std::vector<std::int64_t>& columns) {
  Values own;
  for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(width)) {
    for (const std::int64_t column : columns)
      own.push_back(rows[row + static_cast<std::size_t>(column)]);
  }
  return own;
}

TEST_P(Attention, OfSomeOfAModelsHeadsHasTheirBitsAmongAllUnderDropout) {
  const AttentionShape whole{2, 67, 6, 3, 8};
  const std::int64_t K = whole.head_width, width = whole.packed_width();
  const OwnedTensor qkv(GetParam(), test::random_values(whole.tokens() * width, 1));
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(whole), 2));
  Dropout dropout = kDropout;
  dropout.first_element = 5 * 6 * 67 * 67;
  const auto stream = test::compute_stream();
  const Outputs all = both_ways(*stream, whole, qkv, dout, dropout);
  for (std::int64_t first = 0; first < 6; first += 2) {
    const SomeHeads heads = some_heads(whole, first, 2);
    std::vector<std::int64_t> outputs;
    for (std::int64_t i = 0; i < 2 * K; ++i) outputs.push_back(first * K + i);
    const OwnedTensor own_qkv(GetParam(), columns_of(qkv.values(), width, heads.columns));
    const OwnedTensor own_dout(GetParam(), columns_of(dout.values(), 6 * K, outputs));
    const Outputs own = both_ways(*stream, heads.shape, own_qkv, own_dout, dropout);
    EXPECT_EQ(own[kOut].values(), columns_of(all[kOut].values(), 6 * K, outputs));
    EXPECT_EQ(own[kDqkv].values(), columns_of(all[kDqkv].values(), width, heads.columns));
  }
}

// One key/value head for two ranks: what they add up is what was rounded last.
TEST_P(Attention, GivesGradientsOfKeysAndValuesUnroundedWhereOthersAddToThem) {
  const AttentionShape shape{2, 67, 4, 2, 8};
  const std::int64_t width = shape.packed_width(), kv = 2 * shape.kv_heads * shape.head_width;
  const OwnedTensor qkv(GetParam(), test::random_values(shape.tokens() * width, 1));
  const OwnedTensor dout(GetParam(), test::random_values(out_numel(shape), 2));
  const auto stream = test::compute_stream();
  const Outputs whole = both_ways(*stream, shape, qkv, dout, kDropout);
  OwnedTensor dqkv(GetParam(), shape.tokens() * width), dkv(DType::kF32, shape.tokens() * kv);
  OwnedTensor workspace = scratch(*stream, shape, GetParam());
  attention_backward(*stream, {.shape = shape,
                               .qkv = qkv,
                               .out = whole[kOut],
                               .lse = whole[kLse],
                               .dout = dout,
                               .dropout = kDropout,
                               .dqkv = dqkv,
                               .workspace = workspace,
                               .dkv = dkv});
  std::vector<std::int64_t> queries, keys_and_values;
  for (std::int64_t i = 0; i < width; ++i)
    (i < width - kv ? queries : keys_and_values).push_back(i);
  EXPECT_EQ(columns_of(dqkv.values(), width, queries),
            columns_of(whole[kDqkv].values(), width, queries));
  EXPECT_EQ(test::rounded(GetParam(), dkv.values()),
            columns_of(whole[kDqkv].values(), width, keys_and_values));
  EXPECT_EQ(dkv.values() == test::rounded(GetParam(), dkv.values()), GetParam() == DType::kF32);
}

}  // namespace
}  // namespace sherd::kernels
