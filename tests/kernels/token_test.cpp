#include "kernels/token.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/thread_team.h"
#include "tests/support/oracles/oracle_philox.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// B sequences, S positions, T = B * S tokens, D width, V vocabulary.
namespace sherd::kernels {
namespace {

using oracle::EmbeddingShape;
using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr Dropout kDropout{0.2f, {0xabcdef0123ull, 2, 9}, 0};

const EmbeddingShape kShapes[] = {{1, 1, 1, 1, 1},     {1, 7, 5, 3, 9},       {3, 13, 37, 11, 0},
                                  {2, 65, 96, 50, 65}, {2, 65, 300, 997, 70}, {1, 9, 600, 5, 9}};

std::string describe(const EmbeddingShape& shape) {
  return fmt::format("B {} S {} D {} V {}, {} position rows", shape.sequences, shape.positions,
                     shape.width, shape.vocab_size, shape.position_rows);
}

struct Case {
  Case(DType dtype, EmbeddingShape shape, Dropout dropout)
      : shape(shape),
        dropout(dropout),
        dtype(dtype),
        token_ids(test::random_tokens(num_tokens(), shape.vocab_size, 1)),
        tokens(token_ids),
        token_weight(dtype, test::random_values(shape.vocab_size * shape.width, 2)),
        position_weight(dtype, test::random_values(shape.position_rows * shape.width, 3)),
        dy(dtype, test::random_values(numel(), 4)) {}

  std::int64_t num_tokens() const { return shape.sequences * shape.positions; }
  std::int64_t numel() const { return num_tokens() * shape.width; }
  bool has_positions() const { return shape.position_rows > 0; }

  EmbeddingShape shape;
  Dropout dropout;
  DType dtype;
  std::vector<std::int32_t> token_ids;
  OwnedTensor tokens, token_weight, position_weight, dy;
};

OwnedTensor forward(Stream& stream, const Case& c) {
  OwnedTensor y(c.dtype, c.numel());
  embedding_forward(stream, {.sequences = c.shape.sequences,
                             .positions = c.shape.positions,
                             .width = c.shape.width,
                             .vocab_size = c.shape.vocab_size,
                             .tokens = c.tokens,
                             .token_weight = c.token_weight,
                             .position_weight =
                                 c.has_positions() ? ConstTensor(c.position_weight) : ConstTensor(),
                             .dropout = c.dropout,
                             .y = y});
  return y;
}

// `head`, if given, is the initial value of d_token_weight, to which gradients are added.
Outputs backward(Stream& stream, const Case& c, DType grad_dtype,
                 const OwnedTensor* head = nullptr) {
  Outputs out{head ? *head : OwnedTensor(grad_dtype, c.shape.vocab_size * c.shape.width),
              {grad_dtype, c.shape.position_rows * c.shape.width}};
  OwnedTensor workspace = test::workspace(embedding_backward_workspace_bytes(
      c.num_tokens(), c.shape.vocab_size, compute_device(stream)));
  embedding_backward(stream, {.sequences = c.shape.sequences,
                              .positions = c.shape.positions,
                              .width = c.shape.width,
                              .vocab_size = c.shape.vocab_size,
                              .position_rows = c.shape.position_rows,
                              .tokens = c.tokens,
                              .dy = c.dy,
                              .dropout = c.dropout,
                              .d_token_weight = out[0],
                              .d_position_weight = c.has_positions() ? Tensor(out[1]) : Tensor(),
                              .add_to_token_gradient = head != nullptr,
                              .workspace = workspace});
  return out;
}

class Token : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Token, test::compute_types(), test::type_name);

TEST_P(Token, EmbeddingMatchesTheOracleOnAnyNumberOfThreads) {
  for (const EmbeddingShape& shape : kShapes) {
    for (const Dropout& dropout : {Dropout{}, kDropout}) {
      SCOPED_TRACE(describe(shape));
      const Case c(GetParam(), shape, dropout);
      const Outputs out = test::on_any_number_of_threads(
          [&](Stream& stream) { return Outputs{forward(stream, c)}; });
      const Values expected = oracle::embedding_forward(shape, c.token_ids, c.token_weight.values(),
                                                        c.position_weight.values(),
                                                        oracle::dropout_mask(dropout, c.numel()));
      EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())));
    }
  }
}

TEST_P(Token, EmbeddingGradientsMatchTheOracleInTheirOwnTypeOnAnyNumberOfThreads) {
  for (const EmbeddingShape& shape : kShapes) {
    for (const Dropout& dropout : {Dropout{}, kDropout}) {
      SCOPED_TRACE(describe(shape));
      const Case c(GetParam(), shape, dropout);
      const oracle::EmbeddingGradients expected = oracle::embedding_backward(
          shape, c.token_ids, c.dy.values(), oracle::dropout_mask(dropout, c.numel()));
      for (const DType grad_dtype : {GetParam(), DType::kF32}) {
        const Outputs out = test::on_any_number_of_threads(
            [&](Stream& stream) { return backward(stream, c, grad_dtype); });
        const test::Tolerance tolerance = test::rounded_once(grad_dtype);
        EXPECT_TRUE(test::close(out[0], expected.token_weight, tolerance));
        if (c.has_positions()) {
          EXPECT_TRUE(test::close(out[1], expected.position_weight, tolerance));
        }
      }
    }
  }
}

TEST(TokenOrder, GradientsAreAddedInTheOrderOfTheTokensToTheBit) {
  const Case c(DType::kF32, {3, 43, 17, 5, 50}, {});
  OwnedTensor token_gradient(DType::kF32, Values(5 * 17, 0.0));
  OwnedTensor position_gradient(DType::kF32, Values(50 * 17, 0.0));
  const float* dy = c.dy.tensor().as<float>();
  for (std::size_t t = 0; t < c.token_ids.size(); ++t) {
    for (std::size_t d = 0; d < 17; ++d) {
      const auto token = static_cast<std::size_t>(c.token_ids[t]);
      token_gradient.tensor().as<float>()[token * 17 + d] += dy[t * 17 + d];
      position_gradient.tensor().as<float>()[t % 43 * 17 + d] += dy[t * 17 + d];
    }
  }
  const auto stream = test::compute_stream(2);
  const Outputs out = backward(*stream, c, DType::kF32);
  EXPECT_TRUE(test::same_bits(out[0], token_gradient));
  EXPECT_TRUE(test::same_bits(out[1], position_gradient));

  // Tied to the head: one addition to the head's gradient, after the sum.
  const OwnedTensor head(DType::kF32, test::random_values(5 * 17, 8));
  OwnedTensor sum = head;
  for (std::int64_t i = 0; i < sum.numel(); ++i) {
    sum.tensor().as<float>()[i] += token_gradient.tensor().as<float>()[i];
  }
  EXPECT_TRUE(test::same_bits(backward(*stream, c, DType::kF32, &head)[0], sum));
}

TEST_P(Token, TokenGradientCanBeAddedToOnAnyNumberOfThreads) {
  const Case c(GetParam(), {2, 65, 24, 300, 65}, kDropout);
  const OwnedTensor head(GetParam(), test::random_values(300 * 24, 8));
  const Outputs out = test::on_any_number_of_threads(
      [&](Stream& stream) { return backward(stream, c, GetParam(), &head); });
  Values expected = oracle::embedding_backward(c.shape, c.token_ids, c.dy.values(),
                                               oracle::dropout_mask(kDropout, c.numel()))
                        .token_weight;
  const Values before = head.values();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  EXPECT_TRUE(test::close(out[0], expected, test::rounded_once(GetParam())));
}

// Rows [first, first + 5) of a vocabulary of 13, on three ranks.
TEST_P(Token, EmbeddingsOfPartsOfTheVocabularyAddUpToTheWholesBits) {
  constexpr std::int64_t kVocab = 13, kWidth = 24, kRows = 5;
  const Case c(GetParam(), {2, 9, kWidth, kVocab, 9}, kDropout);
  const auto stream = test::compute_stream();
  const Values whole = forward(*stream, c).values();
  const OwnedTensor head(GetParam(), test::random_values(kVocab * kWidth, 8));
  const Values of_head = head.values();
  const Outputs whole_gradients = backward(*stream, c, GetParam(), &head);
  Values sum(whole.size(), 0.0);
  for (std::int64_t first = 0; first < kVocab; first += kRows) {
    const std::int64_t rows = std::min(kRows, kVocab - first);
    const VocabularyRows part{first, kVocab};
    OwnedTensor y(GetParam(), c.numel());
    embedding_forward(
        *stream, {.sequences = 2,
                  .positions = 9,
                  .width = kWidth,
                  .vocab_size = rows,
                  .tokens = c.tokens,
                  .token_weight = ConstTensor(c.token_weight).part(first * kWidth, rows * kWidth),
                  .position_weight = c.position_weight,
                  .dropout = kDropout,
                  .y = y,
                  .rows = part});
    const Values part_of_sum = y.values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part_of_sum[i];
    OwnedTensor gradient(GetParam(), Values(of_head.begin() + first * kWidth,
                                            of_head.begin() + (first + rows) * kWidth));
    OwnedTensor positions(GetParam(), 9 * kWidth);
    OwnedTensor workspace = test::workspace(
        embedding_backward_workspace_bytes(c.num_tokens(), rows, compute_device(*stream)));
    embedding_backward(*stream, {.sequences = 2,
                                 .positions = 9,
                                 .width = kWidth,
                                 .vocab_size = rows,
                                 .position_rows = 9,
                                 .tokens = c.tokens,
                                 .dy = c.dy,
                                 .dropout = kDropout,
                                 .d_token_weight = gradient,
                                 .d_position_weight = positions,
                                 .add_to_token_gradient = true,
                                 .workspace = workspace,
                                 .rows = part});
    EXPECT_TRUE(test::same_bits(
        gradient, ConstTensor(whole_gradients[0]).part(first * kWidth, rows * kWidth)));
    EXPECT_TRUE(test::same_bits(positions, whole_gradients[1])) << "positions are every rank's";
  }
  EXPECT_EQ(sum, whole);
}

TEST_P(Token, EmbeddingOfRowsAloneUsesTheMaskOfTheWhole) {
  Case whole(GetParam(), {4, 5, 7, 11, 5}, kDropout);
  const auto stream = test::compute_stream();
  const OwnedTensor together = forward(*stream, whole);
  for (std::int64_t b = 0; b < 4; ++b) {
    OwnedTensor y(GetParam(), 5 * 7);
    Dropout dropout = kDropout;
    dropout.first_element = b * 5 * 7;
    embedding_forward(*stream, {.sequences = 1,
                                .positions = 5,
                                .width = 7,
                                .vocab_size = 11,
                                .tokens = ConstTensor(whole.tokens).part(b * 5, 5),
                                .token_weight = whole.token_weight,
                                .position_weight = whole.position_weight,
                                .dropout = dropout,
                                .y = y});
    EXPECT_TRUE(test::same_bits(y, ConstTensor(together).part(b * 35, 35)));
  }
}

TEST(TokenOracle, EmbeddingGradientsAreCentralDifferences) {
  const EmbeddingShape shape{2, 3, 4, 5, 4};
  const std::vector<std::int32_t> tokens{1, 4, 1, 0, 1, 3};
  const Values token_weight = test::random_values(20, 1), positions = test::random_values(16, 2);
  const Values direction = test::random_values(24, 3), mask = oracle::dropout_mask(kDropout, 24);
  const oracle::EmbeddingGradients gradients =
      oracle::embedding_backward(shape, tokens, direction, mask);
  EXPECT_TRUE(oracle::is_gradient(gradients.token_weight, token_weight, [&](const Values& v) {
    return oracle::dot(direction, oracle::embedding_forward(shape, tokens, v, positions, mask));
  }));
  EXPECT_TRUE(oracle::is_gradient(gradients.position_weight, positions, [&](const Values& v) {
    return oracle::dot(direction, oracle::embedding_forward(shape, tokens, token_weight, v, mask));
  }));
}

TEST_P(Token, EmbeddingsAndTheirGradientsAreScaled) {
  const oracle::EmbeddingShape shape{2, 5, 33, 7, 5};
  const auto tokens = test::random_tokens(10, 7, 1);
  const OwnedTensor ids(tokens), table(GetParam(), test::random_values(7 * 33, 2));
  const OwnedTensor positions(GetParam(), test::random_values(5 * 33, 3));
  const OwnedTensor dy(GetParam(), test::random_values(10 * 33, 4));
  constexpr double kScale = 6.0;
  Values scaled = table.values();
  for (double& value : scaled) value *= kScale;
  const Values none(10 * 33, 1.0);
  OwnedTensor y(GetParam(), 10 * 33), d_table(DType::kF32, 7 * 33);
  OwnedTensor d_positions(DType::kF32, 5 * 33);
  const auto stream = test::compute_stream();
  embedding_forward(*stream, {2, 5, 33, 7, ids, table, positions, {}, y, 6.0f});
  OwnedTensor workspace =
      test::workspace(embedding_backward_workspace_bytes(10, 7, compute_device(*stream)));
  embedding_backward(*stream,
                     {2, 5, 33, 7, 5, ids, dy, {}, d_table, d_positions, false, workspace, 6.0f});
  stream->synchronize();
  EXPECT_TRUE(
      test::close(y, oracle::embedding_forward(shape, tokens, scaled, positions.values(), none),
                  test::rounded_once(GetParam())));
  oracle::EmbeddingGradients expected =
      oracle::embedding_backward(shape, tokens, dy.values(), none);
  for (double& value : expected.token_weight) value *= kScale;
  EXPECT_TRUE(test::close(d_table, expected.token_weight, {4e-6, 4e-6, 1e-6}));
  EXPECT_TRUE(test::close(d_positions, expected.position_weight, {4e-6, 4e-6, 1e-6}));
}

}  // namespace
}  // namespace sherd::kernels
