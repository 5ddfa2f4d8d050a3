// Sums over tokens as trees over groups: those of a whole micro-batch are made of those of its halves' positions, and
// are the sums of the equations.
#include "kernels/token_groups.h"

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/grouped_linear.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/token.h"
#include "tests/support/oracles/oracle_linear.h"
#include "tests/support/oracles/oracle_norm.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// B sequences of S positions.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kSequences = 3, kGroup = 13, kPositions = 8 * kGroup;
constexpr std::int64_t kTokens = kSequences * kPositions;
constexpr TokenGroups kAll{8, kGroup, kSequences, kPositions};
constexpr TokenGroups kHalf{4, kGroup, kSequences, kPositions / 2};

// Of both halves of the positions of every sequence.
OwnedTensor half_of(const OwnedTensor& rows, int half) {
  const Values all = rows.values();
  const auto count = std::ssize(all) / (2 * kSequences);
  Values part;
  for (std::int64_t b = 0; b < kSequences; ++b) {
    const auto begin = all.begin() + (2 * b + half) * count;
    part.insert(part.end(), begin, begin + count);
  }
  return {rows.tensor().dtype, part};
}

OwnedTensor random(DType dtype, std::int64_t numel, std::uint64_t seed) {
  return {dtype, test::random_values(numel, seed)};
}

// `run` gives the sums of all tokens, or of the half 0 or 1: the whole's are the halves' added once, in f32, and the
// same on any number of threads.
template <class Run>
Outputs expect_sum_of_halves(const Run& run) {
  constexpr int kWhole = -1;
  const Outputs whole =
      test::on_any_number_of_threads([&](Stream& stream) { return run(stream, kWhole); });
  const auto stream = test::compute_stream();
  const Outputs lower = run(*stream, 0), upper = run(*stream, 1);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Values a = lower[i].values(), b = upper[i].values();
    Values sum;
    for (std::size_t j = 0; j < a.size(); ++j) {
      sum.push_back(static_cast<float>(a[j]) + static_cast<float>(b[j]));
    }
    EXPECT_TRUE(test::same_bits(whole[i], OwnedTensor(DType::kF32, sum))) << "sum " << i;
  }
  return whole;
}

class TokenSums : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, TokenSums, test::compute_types(), test::type_name);

TEST_P(TokenSums, OfMatricesAndBiasesAreTrees) {
  constexpr LinearShape kShape{kTokens, 37, 301};
  const OwnedTensor x = random(GetParam(), kTokens * 37, 1),
                    dy = random(GetParam(), kTokens * 301, 2);
  const auto run = [&](Stream& stream, int half) {
    const bool all = half < 0;
    const LinearShape shape{all ? kTokens : kTokens / 2, 37, 301};
    Outputs out{{DType::kF32, shape.outputs * shape.inputs}, {DType::kF32, shape.outputs}};
    OwnedTensor workspace = test::workspace(grouped_linear_workspace_bytes(
        shape.outputs, shape.inputs, shape.tokens, 8, compute_device(stream)));
    const OwnedTensor own_x = all ? x : half_of(x, half), own_dy = all ? dy : half_of(dy, half);
    grouped_backward_weight(stream,
                            {shape, all ? kAll : kHalf, own_dy, own_x, out[0], out[1], workspace});
    stream.synchronize();
    return out;
  };
  const Outputs out = expect_sum_of_halves(run);
  test::Tolerance tolerance = test::rounded_once(DType::kF32);
  tolerance.absolute += 1e-5;
  EXPECT_TRUE(test::close(out[0], oracle::linear_backward_weight(kShape, dy.values(), x.values()),
                          tolerance));
  EXPECT_TRUE(test::close(out[1], oracle::linear_backward_bias(kShape, dy.values()), tolerance));
}

// A rank of eight has one group: its sum is that of the groups' products, one sequence after the other.
TEST(TokenSums, OfAGroupAreOneSequenceAfterTheOther) {
  const LinearShape shape{kTokens, 5, 7};
  const OwnedTensor x = random(DType::kF32, kTokens * 5, 1),
                    dy = random(DType::kF32, kTokens * 7, 2);
  const auto stream = test::compute_stream();
  OwnedTensor dw(DType::kF32, 35), expected(DType::kF32, Values(35));
  OwnedTensor workspace = test::workspace(1 << 20);
  grouped_backward_weight(
      *stream, {shape, {1, kPositions, kSequences, kPositions}, dy, x, dw, {}, workspace});
  for (std::int64_t b = 0; b < kSequences; ++b) {
    linear_backward_weight(*stream, {{kPositions, 5, 7},
                                     dy.tensor().part(b * kPositions * 7, kPositions * 7),
                                     x.tensor().part(b * kPositions * 5, kPositions * 5),
                                     expected,
                                     {},
                                     b > 0,
                                     workspace});
  }
  stream->synchronize();
  EXPECT_TRUE(test::same_bits(dw, expected));
}

TEST_P(TokenSums, OfNormsAreTrees) {
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    constexpr std::int64_t kWidth = 45;
    const OwnedTensor residual = random(GetParam(), kTokens * kWidth, 1);
    const OwnedTensor dy = random(GetParam(), kTokens * kWidth, 2);
    const OwnedTensor weight = random(GetParam(), kWidth, 3);
    const auto run = [&](Stream& stream, int half) {
      const bool all = half < 0;
      NormShape shape{kind, all ? kTokens : kTokens / 2, kWidth};
      shape.groups = all ? kAll : kHalf;
      const OwnedTensor r = all ? residual : half_of(residual, half);
      const OwnedTensor own_dy = all ? dy : half_of(dy, half);
      OwnedTensor y(GetParam(), r.numel()), d_in(GetParam(), r.numel());
      OwnedTensor mean(DType::kF32, shape.tokens), rstd(DType::kF32, shape.tokens);
      OwnedTensor workspace =
          test::workspace(norm_backward_workspace_bytes(shape, compute_device(stream)));
      norm_forward(stream, {.shape = shape,
                            .residual = r,
                            .branch = {},
                            .branch_dropout = {},
                            .weight = weight,
                            .bias = {},
                            .residual_out = {},
                            .y = y,
                            .mean = mean,
                            .rstd = rstd});
      Outputs out{{DType::kF32, kWidth}, {DType::kF32, kWidth}};
      norm_backward(stream, {.shape = shape,
                             .residual = r,
                             .mean = mean,
                             .rstd = rstd,
                             .weight = weight,
                             .dy = own_dy,
                             .d_residual_out = {},
                             .branch_dropout = {},
                             .d_residual_in = d_in,
                             .d_branch = {},
                             .dweight = out[0],
                             .dbias = out[1],
                             .workspace = workspace});
      stream.synchronize();
      return out;
    };
    const Outputs out = expect_sum_of_halves(run);
    const oracle::NormGradients expected = oracle::norm_backward(
        {kind, kTokens, kWidth}, residual.values(), weight.values(), dy.values(), {});
    EXPECT_TRUE(test::close(out[0], expected.dweight, {1e-4, 1e-5}));
    EXPECT_TRUE(test::close(out[1], expected.dbias, {1e-4, 1e-5}));
  }
}

// And of each group apart, of which the tree is made.
void expect_norms_of_heads_are_trees(DType dtype, QkRows rows) {
  constexpr std::int64_t kHeads = 8, kKeys = 4, kWidth = 6;
  constexpr std::int64_t kPacked = (kHeads + 2 * kKeys) * kWidth;
  const OwnedTensor raw = random(dtype, kTokens * (kHeads + kKeys) * kWidth, 1);
  const OwnedTensor dy = random(dtype, kTokens * kPacked, 2);
  const bool own_weights = rows == QkRows::kPerHead;
  const std::int64_t query_weights = (own_weights ? kHeads : 1) * kWidth;
  const std::int64_t key_weights = (own_weights ? kKeys : 1) * kWidth;
  const OwnedTensor query_weight = random(dtype, query_weights, 3);
  const OwnedTensor key_weight = random(dtype, key_weights, 3);
  const auto run_with = [&](Stream& stream, int half, bool of_each_group) {
    const bool all = half < 0;
    QkNormShape shape{.rows = rows,
                      .tokens = all ? kTokens : kTokens / 2,
                      .query_heads = kHeads,
                      .kv_heads = kKeys,
                      .head_width = kWidth,
                      .groups = 4};
    shape.token_groups = all ? kAll : kHalf;
    const OwnedTensor own_raw = all ? raw : half_of(raw, half);
    OwnedTensor dqkv = all ? dy : half_of(dy, half);
    const OwnedTensor rstd(DType::kF32,
                           Values(static_cast<std::size_t>(shape.tokens * (kHeads + kKeys)), 0.5));
    OwnedTensor workspace =
        test::workspace(qk_norm_backward_workspace_bytes(shape, compute_device(stream)));
    const std::int64_t sums = of_each_group ? shape.token_groups.groups : 1;
    Outputs out{{DType::kF32, sums * shape.query_weights()},
                {DType::kF32, sums * shape.key_weights()}};
    QkNormBackward args{shape,      own_raw, {},     rstd,   query_weight,
                        key_weight, dqkv,    out[0], out[1], workspace};
    args.of_each_group = of_each_group;
    qk_norm_backward(stream, args);
    stream.synchronize();
    return out;
  };
  const Outputs out =
      expect_sum_of_halves([&](Stream& stream, int half) { return run_with(stream, half, false); });
  const auto stream = test::compute_stream();
  const Outputs groups = run_with(*stream, -1, true);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto numel = static_cast<std::size_t>(i == 0 ? query_weights : key_weights);
    Values sums = groups[i].values();
    for (std::size_t apart = 1; apart < 8; apart *= 2) {
      for (std::size_t at = 0; at + apart * numel < sums.size(); at += 2 * apart * numel) {
        for (std::size_t c = 0; c < numel; ++c) {
          sums[at + c] =
              static_cast<float>(sums[at + c]) + static_cast<float>(sums[at + apart * numel + c]);
        }
      }
    }
    sums.resize(numel);
    EXPECT_TRUE(test::same_bits(out[i], OwnedTensor(DType::kF32, sums)));
  }
}

TEST_P(TokenSums, OfNormsOfHeadsAreTrees) {
  for (const QkRows rows : {QkRows::kHeads, QkRows::kPerHead}) {
    SCOPED_TRACE(static_cast<int>(rows));
    expect_norms_of_heads_are_trees(GetParam(), rows);
  }
}

// Tokens that come in one group, in several, and never.
TEST_P(TokenSums, OfEmbeddingsAreTrees) {
  constexpr std::int64_t kWidth = 70, kVocabulary = 61;
  const std::vector<std::int32_t> ids = test::random_tokens(kTokens, kVocabulary - 2, 4);
  const OwnedTensor dy = random(GetParam(), kTokens * kWidth, 2);
  const auto run = [&](Stream& stream, int half) {
    const bool all = half < 0;
    const std::int64_t positions = all ? kPositions : kPositions / 2;
    std::vector<std::int32_t> own_ids;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const bool here = all || (t % kPositions < positions) == (half == 0);
      if (here) own_ids.push_back(ids[static_cast<std::size_t>(t)]);
    }
    const OwnedTensor own_dy = all ? dy : half_of(dy, half);
    OwnedTensor workspace = test::workspace(
        embedding_backward_workspace_bytes(kTokens, kVocabulary, compute_device(stream)));
    Outputs out{{DType::kF32, kVocabulary * kWidth}};
    embedding_backward(stream, {.sequences = kSequences,
                                .positions = positions,
                                .width = kWidth,
                                .vocab_size = kVocabulary,
                                .tokens = {own_ids.data(), DType::kI32, std::ssize(own_ids)},
                                .dy = own_dy,
                                .dropout = {},
                                .d_token_weight = out[0],
                                .d_position_weight = {},
                                .workspace = workspace,
                                .scale = 1.5f,
                                .groups = all ? kAll : kHalf});
    stream.synchronize();
    return out;
  };
  const Outputs out = expect_sum_of_halves(run);
  Values expected =
      oracle::embedding_backward({kSequences, kPositions, kWidth, kVocabulary, 0}, ids, dy.values(),
                                 Values(static_cast<std::size_t>(kTokens * kWidth), 1.0))
          .token_weight;
  for (double& value : expected) value *= 1.5;
  EXPECT_TRUE(test::close(out[0], expected, {1e-5, 1e-5}));
}

// Queries of the first half, and of the second, against the keys and values of all positions.
TEST_P(TokenSums, OfKeysAndValuesAreTrees) {
  AttentionShape whole{.sequences = kSequences,
                       .positions = kPositions,
                       .query_heads = 4,
                       .kv_heads = 2,
                       .head_width = 10,
                       .of_a_query_group = kGroup};
  const std::int64_t packed = whole.packed_width(), width = 40, kv_width = packed - width;
  const OwnedTensor qkv = random(GetParam(), kTokens * packed, 1);
  const OwnedTensor dout = random(GetParam(), kTokens * width, 2);
  Values columns;
  const Values all_values = qkv.values();
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto row = all_values.begin() + t * packed;
    columns.insert(columns.end(), row + width, row + packed);
  }
  const OwnedTensor keys_values(GetParam(), columns);
  for (const int heads_in_groups : {1, 2}) {
    for (const std::int64_t window : {0, 20}) {
      constexpr int kInOrder = -2;
      const auto run = [&](Stream& stream, int half) {
        const bool all = half < 0;
        AttentionShape shape = whole;
        shape.window = window;
        shape.kv_sum_groups = heads_in_groups;
        shape.query_groups = half == kInOrder ? 0 : all ? 8 : 4;
        shape.first_query = half == 1 ? kPositions / 2 : 0;
        shape.queries = all ? kPositions : kPositions / 2;
        const OwnedTensor own_qkv = all ? qkv : half_of(qkv, half);
        const OwnedTensor own_dout = all ? dout : half_of(dout, half);
        OwnedTensor workspace =
            test::workspace(attention_workspace_bytes(shape, GetParam(), compute_device(stream)));
        OwnedTensor attended(GetParam(), own_dout.numel()), dqkv(GetParam(), own_qkv.numel());
        OwnedTensor lse(DType::kF32, shape.query_tokens() * shape.query_heads);
        Outputs out{{DType::kF32, heads_in_groups * kTokens * kv_width}};
        attention_forward(stream, {.shape = shape,
                                   .qkv = own_qkv,
                                   .dropout = {},
                                   .out = attended,
                                   .lse = lse,
                                   .workspace = workspace,
                                   .keys_values = keys_values});
        attention_backward(stream, {.shape = shape,
                                    .qkv = own_qkv,
                                    .out = attended,
                                    .lse = lse,
                                    .dout = own_dout,
                                    .dropout = {},
                                    .dqkv = dqkv,
                                    .workspace = workspace,
                                    .dkv = out[0],
                                    .keys_values = keys_values,
                                    .dkv_of_each_group = true});
        stream.synchronize();
        return out;
      };
      const Outputs out = expect_sum_of_halves(run);
      const auto stream = test::compute_stream();
      EXPECT_TRUE(test::close(out[0], run(*stream, kInOrder)[0].values(), {1e-5, 1e-5}));
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
