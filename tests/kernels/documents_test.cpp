// Rows of several documents (kernels/documents.h): each is computed as if it were alone.
#include "kernels/documents.h"

#include <gtest/gtest.h>

#include "core/thread_team.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "kernels/token.h"
#include "tests/support/models/documents.h"
#include "tests/support/oracles/oracle_attention.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/values/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

using test::OwnedDocuments;
using Place = test::DocumentPlace;
using test::documents_in_rows;

constexpr std::int64_t kPositions = test::kDocumentPositions;
const std::vector<Place>& kPlaces = test::kDocumentPlaces;

enum AttentionOutput : std::size_t { kOut, kLse, kDqkv };

Outputs both_ways(Stream& stream, const AttentionShape& shape, ConstTensor qkv, ConstTensor dout,
                  const Documents& documents, const Dropout& dropout = {}) {
  const auto workspace = [&] {
    return test::workspace(attention_workspace_bytes(shape, qkv.dtype, compute_device(stream)));
  };
  Outputs out{{qkv.dtype, dout.numel},
              {DType::kF32, shape.tokens() * shape.query_heads},
              {qkv.dtype, qkv.numel}};
  OwnedTensor forward = workspace(), backward = workspace();
  attention_forward(stream, {.shape = shape,
                             .qkv = qkv,
                             .dropout = dropout,
                             .out = out[kOut],
                             .lse = out[kLse],
                             .workspace = forward,
                             .documents = documents});
  attention_backward(stream, {.shape = shape,
                              .qkv = qkv,
                              .out = out[kOut],
                              .lse = out[kLse],
                              .dout = dout,
                              .dropout = dropout,
                              .dqkv = out[kDqkv],
                              .workspace = backward,
                              .documents = documents});
  return out;
}

ConstTensor tokens_of(const OwnedTensor& tensor, const Place& place) {
  const std::int64_t width = tensor.numel() / (2 * kPositions);
  return ConstTensor(tensor).part(place.first * width, place.length * width);
}

/// A document's part of lse [B, H, S], head by head.
Values statistics_of(const OwnedTensor& lse, const AttentionShape& shape, const Place& place) {
  const Values all = lse.values();
  Values values;
  for (std::int64_t h = 0; h < shape.query_heads; ++h) {
    const std::int64_t row = place.first / kPositions;
    const auto begin =
        all.begin() + (row * shape.query_heads + h) * kPositions + place.first % kPositions;
    values.insert(values.end(), begin, begin + place.length);
  }
  return values;
}

class DocumentRows : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, DocumentRows, test::compute_types(), test::type_name);

TEST_P(DocumentRows, AttentionOfEachHasTheBitsThatItHasAlone) {
  const AttentionShape forms[] = {{2, kPositions, 4, 2, 8},
                                  {2, kPositions, 2, 2, 12, 0.3f, 30},
                                  {2, kPositions, 3, 1, 5, 0.0f, 200, 1.5f}};
  for (const AttentionShape& shape : forms) {
    const OwnedTensor qkv(GetParam(),
                          test::random_values(shape.tokens() * shape.packed_width(), 1));
    const OwnedTensor dout(
        GetParam(), test::random_values(shape.tokens() * shape.query_heads * shape.head_width, 2));
    const OwnedDocuments where = documents_in_rows();
    const Outputs together = test::on_any_number_of_threads(
        [&](Stream& s) { return both_ways(s, shape, qkv, dout, where); });
    for (const Place& place : kPlaces) {
      SCOPED_TRACE(place.first);
      AttentionShape one = shape;
      one.sequences = 1;
      one.positions = place.length;
      const Outputs alone = both_ways(*test::compute_stream(), one, tokens_of(qkv, place),
                                      tokens_of(dout, place), {});
      EXPECT_TRUE(test::same_bits(alone[kOut], tokens_of(together[kOut], place)));
      EXPECT_TRUE(test::same_bits(alone[kDqkv], tokens_of(together[kDqkv], place)));
      EXPECT_EQ(alone[kLse].values(), statistics_of(together[kLse], shape, place));
    }
    for (const std::int64_t t : test::padding_tokens()) {
      for (const AttentionOutput output : {kOut, kDqkv}) {
        for (const double value : test::values_of(tokens_of(together[output], {t, 1}))) {
          EXPECT_EQ(value, 0.0);
        }
      }
      EXPECT_EQ(statistics_of(together[kLse], shape, {t, 1}),
                Values(static_cast<std::size_t>(shape.query_heads)));
    }
  }
}

// The mask's elements are those of the row, wherever documents begin.
TEST_P(DocumentRows, AttentionWithDropoutMatchesTheOracleDocumentByDocument) {
  const AttentionShape shape{2, kPositions, 4, 2, 8};
  const Dropout dropout{0.3f, {0xfeedfaceull, 3, 5}, 7 * 4 * kPositions * kPositions};
  const OwnedTensor qkv(GetParam(), test::random_values(shape.tokens() * shape.packed_width(), 1));
  const OwnedTensor dout(GetParam(), test::random_values(shape.tokens() * 32, 2));
  const Outputs together =
      both_ways(*test::compute_stream(), shape, qkv, dout, documents_in_rows(), dropout);
  const Values mask =
      oracle::dropout_mask(dropout, shape.tokens() * shape.query_heads * kPositions);
  for (const Place& place : kPlaces) {
    AttentionShape one = shape;
    one.sequences = 1;
    one.positions = place.length;
    Values mask_HSS;
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t q = 0; q < place.length; ++q) {
        const std::int64_t first = place.first % kPositions;
        const auto row = ((place.first / kPositions * 4 + h) * kPositions + first + q) * kPositions;
        const auto begin = mask.begin() + row + first;
        mask_HSS.insert(mask_HSS.end(), begin, begin + place.length);
      }
    }
    const Values of_qkv = test::values_of(tokens_of(qkv, place));
    const oracle::Attention expected = oracle::attention_forward(one, of_qkv, mask_HSS);
    const test::Tolerance tolerance = test::attended(GetParam());
    const Values out = test::values_of(tokens_of(together[kOut], place));
    EXPECT_TRUE(test::close(out, expected.out, tolerance, expected.magnitudes));
    test::Tolerance cancelling = tolerance;
    cancelling.absolute += 1e-6;
    Values magnitudes;
    const Values gradient = oracle::attention_backward(
        one, of_qkv, mask_HSS, out, test::values_of(tokens_of(dout, place)), &magnitudes);
    EXPECT_TRUE(test::close(test::values_of(tokens_of(together[kDqkv], place)), gradient,
                            cancelling, magnitudes));
  }
}

TEST_P(DocumentRows, PositionsBeginAnewWithEachDocument) {
  constexpr std::int64_t kWidth = 12, kVocab = 40;
  const OwnedDocuments where = documents_in_rows();
  const OwnedTensor tokens(test::random_tokens(2 * kPositions, kVocab, 5));
  const OwnedTensor weight(GetParam(), test::random_values(kVocab * kWidth, 1));
  const OwnedTensor position(GetParam(), test::random_values(kPositions * kWidth, 2));
  const OwnedTensor dy(GetParam(), test::random_values(2 * kPositions * kWidth, 3));
  const auto stream = test::compute_stream(2);
  OwnedTensor table(DType::kF32, kPositions * kWidth);
  rotary_table(*stream, table, kPositions, kWidth, {});
  OwnedTensor turned(GetParam(), test::random_values(2 * kPositions * 3 * kWidth, 4));
  const OwnedTensor before = turned;
  rotary(*stream, {2, kPositions, 1, 1, kWidth, table, turned, false, Documents(where).positions});
  OwnedTensor embedded(GetParam(), 2 * kPositions * kWidth);
  embedding_forward(
      *stream,
      {2, kPositions, kWidth, kVocab, tokens, weight, position, {}, embedded, 1.0f, where});
  Values expected(static_cast<std::size_t>(kPositions * kWidth));
  for (const Place& place : kPlaces) {
    OwnedTensor alone(GetParam(), test::values_of(tokens_of(before, place)));
    rotary(*stream, {1, place.length, 1, 1, kWidth, table, alone});
    EXPECT_TRUE(test::same_bits(alone, tokens_of(turned, place)));
    OwnedTensor one(GetParam(), place.length * kWidth);
    embedding_forward(
        *stream,
        {1, place.length, kWidth, kVocab, tokens_of(tokens, place), weight, position, {}, one});
    EXPECT_TRUE(test::same_bits(one, tokens_of(embedded, place)));
    const Values gradient = test::values_of(tokens_of(dy, place));
    for (std::size_t i = 0; i < gradient.size(); ++i) expected[i] += gradient[i];
  }
  OwnedTensor d_weight(DType::kF32, kVocab * kWidth), d_position(DType::kF32, kPositions * kWidth);
  OwnedTensor workspace = test::workspace(
      embedding_backward_workspace_bytes(2 * kPositions, kVocab, compute_device(*stream)));
  embedding_backward(*stream, {.sequences = 2,
                               .positions = kPositions,
                               .width = kWidth,
                               .vocab_size = kVocab,
                               .position_rows = kPositions,
                               .tokens = tokens,
                               .dy = dy,
                               .dropout = {},
                               .d_token_weight = d_weight,
                               .d_position_weight = d_position,
                               .workspace = workspace,
                               .documents = where});
  EXPECT_TRUE(test::close(d_position, expected, test::rounded_once(DType::kF32)));
}

TEST_P(DocumentRows, ATokenWithoutTargetHasNoLossAndNoGradient) {
  constexpr std::int64_t kTokens = 6, kVocab = 50;
  const Values values = test::random_values(kTokens * kVocab, 1);
  const auto stream = test::compute_stream();
  const auto compute = [&](const std::vector<std::int32_t>& targets) {
    Outputs out{{GetParam(), values}, {DType::kF32, kTokens}};
    cross_entropy(*stream, {.tokens = kTokens,
                            .vocab_size = kVocab,
                            .logits = out[0],
                            .targets = OwnedTensor(targets),
                            .losses = out[1]});
    return out;
  };
  const Outputs all = compute({1, 2, 3, 4, 5, 6});
  const Outputs some = compute({1, kNoTarget, 3, kNoTarget, 5, 6});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto row = ConstTensor(some[0]).part(t * kVocab, kVocab);
    if (t == 1 || t == 3) {
      EXPECT_EQ(test::values_of(row), Values(kVocab));
      EXPECT_EQ(some[1].values()[static_cast<std::size_t>(t)], 0.0);
    } else {
      EXPECT_TRUE(test::same_bits(row, ConstTensor(all[0]).part(t * kVocab, kVocab)));
      EXPECT_TRUE(test::same_bits(ConstTensor(some[1]).part(t, 1), ConstTensor(all[1]).part(t, 1)));
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
