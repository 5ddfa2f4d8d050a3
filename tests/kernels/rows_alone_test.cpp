// A row of a result is bit-identical whether it is computed alone or among others, for every kernel
// that works row by row (or sequence by sequence), on any number of threads and on every
// instruction set: what lets micro-batches be cut, packed and continued.
#include <gtest/gtest.h>

#include "core/thread_team.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"
#include "kernels/token.h"
#include "tests/support/values/tensors.h"

// T tokens, D width, S positions.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

struct Rows {
  std::int64_t first = 0, count = 0;
};

OwnedTensor rows_of(const OwnedTensor& tensor, const Rows& rows, std::int64_t all) {
  const std::int64_t width = tensor.numel() / all;
  const Values values = tensor.values();
  const auto begin = values.begin() + rows.first * width;
  return {tensor.tensor().dtype, Values(begin, begin + rows.count * width)};
}

// `compute(stream, rows)` computes some of `all` rows alone; each output has as many.
using Compute = std::function<Outputs(Stream&, const Rows&)>;

void expect_rows_alone_equal_rows_inside(std::int64_t all, const Compute& compute) {
  const Outputs whole = test::on_any_number_of_threads([&](Stream& s) {
    return compute(s, {0, all});
  });
  for (const Rows& rows : {Rows{0, 1}, Rows{all - 1, 1}, Rows{all / 3, all / 2}}) {
    const Outputs part =
        test::on_any_number_of_threads([&](Stream& s) { return compute(s, rows); });
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(test::same_bits(part[i], rows_of(whole[i], rows, all)))
          << "output " << i << ", rows " << rows.first << " + " << rows.count;
    }
  }
}

class RowsAlone : public testing::TestWithParam<DType> {
 protected:
  OwnedTensor random(std::int64_t numel, std::uint64_t seed, double scale = 1.0) const {
    return {GetParam(), test::random_values(numel, seed, scale)};
  }
  OwnedTensor empty(std::int64_t numel) const { return {GetParam(), numel}; }
};
INSTANTIATE_TEST_SUITE_P(Types, RowsAlone, test::compute_types(), test::type_name);

TEST_P(RowsAlone, LinearForwardAndInputGradient) {
  constexpr std::int64_t kTokens = 90, kInputs = 801, kOutputs = 170;
  const OwnedTensor x = random(kTokens * kInputs, 1), w = random(kOutputs * kInputs, 2);
  const OwnedTensor bias = random(kOutputs, 3), dy = random(kTokens * kOutputs, 4);
  expect_rows_alone_equal_rows_inside(kTokens, [&](Stream& stream, const Rows& rows) {
    const LinearShape shape{rows.count, kInputs, kOutputs};
    OwnedTensor workspace = test::workspace(
        linear_workspace_bytes(shape, GetParam(), GetParam(), compute_device(stream)));
    Outputs out{empty(rows.count * kOutputs), empty(rows.count * kInputs)};
    linear_forward(stream, {shape, rows_of(x, rows, kTokens), w, bias, out[0], workspace});
    linear_backward_input(stream, {shape, rows_of(dy, rows, kTokens), w, out[1], false, workspace});
    stream.synchronize();
    return out;
  });
}

TEST_P(RowsAlone, Norms) {
  constexpr std::int64_t kTokens = 40, kWidth = 301;
  const OwnedTensor x = random(kTokens * kWidth, 1), dy = random(kTokens * kWidth, 2);
  const OwnedTensor weight = random(kWidth, 3), bias = random(kWidth, 4);
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const bool centred = kind == NormKind::kLayerNorm;
    expect_rows_alone_equal_rows_inside(kTokens, [&](Stream& stream, const Rows& rows) {
      const NormShape shape{.kind = kind, .tokens = rows.count, .width = kWidth, .eps = 1e-5f};
      OwnedTensor row_x = rows_of(x, rows, kTokens);
      Outputs out{empty(rows.count * kWidth),
                  {DType::kF32, Values(static_cast<std::size_t>(rows.count))},
                  {DType::kF32, rows.count},
                  empty(rows.count * kWidth)};
      OwnedTensor dweight = empty(kWidth), dbias = empty(kWidth);
      OwnedTensor workspace = test::workspace(norm_backward_workspace_bytes(shape, {}));
      norm_forward(stream, {.shape = shape,
                            .residual = row_x,
                            .branch = {},
                            .branch_dropout = {},
                            .weight = weight,
                            .bias = centred ? ConstTensor(bias) : ConstTensor(),
                            .residual_out = {},
                            .y = out[0],
                            .mean = centred ? Tensor(out[1]) : Tensor(),
                            .rstd = out[2]});
      norm_backward(stream, {.shape = shape,
                             .residual = row_x,
                             .mean = centred ? ConstTensor(out[1]) : ConstTensor(),
                             .rstd = out[2],
                             .weight = weight,
                             .dy = rows_of(dy, rows, kTokens),
                             .d_residual_out = {},
                             .branch_dropout = {},
                             .d_residual_in = out[3],
                             .d_branch = {},
                             .dweight = dweight,
                             .dbias = centred ? Tensor(dbias) : Tensor(),
                             .workspace = workspace});
      stream.synchronize();
      return out;
    });
  }
}

TEST_P(RowsAlone, NormsOfQueriesAndKeys) {
  constexpr std::int64_t kTokens = 20;
  for (const QkRows kind : {QkRows::kHeads, QkRows::kPerHead, QkRows::kProjections}) {
    const QkNormShape all{
        .rows = kind, .tokens = kTokens, .query_heads = 4, .kv_heads = 2, .head_width = 70};
    const OwnedTensor qkv = random(kTokens * all.packed_width(), 1);
    const OwnedTensor query_weight = random(all.query_weights(), 2);
    const OwnedTensor key_weight = random(all.key_weights(), 3);
    expect_rows_alone_equal_rows_inside(kTokens, [&](Stream& stream, const Rows& rows) {
      QkNormShape shape = all;
      shape.tokens = rows.count;
      Outputs out{rows_of(qkv, rows, kTokens),
                  empty(rows.count * shape.raw_width()),
                  {DType::kF32, rows.count * shape.rows_per_token()}};
      qk_norm_forward(stream, {shape, out[0], query_weight, key_weight, out[1], {}, out[2]});
      out.push_back(rows_of(qkv, rows, kTokens));
      OwnedTensor d_query = empty(shape.query_weights()), d_key = empty(shape.key_weights());
      OwnedTensor workspace =
          test::workspace(qk_norm_backward_workspace_bytes(shape, compute_device(stream)));
      qk_norm_backward(
          stream,
          {shape, out[1], {}, out[2], query_weight, key_weight, out[3], d_query, d_key, workspace});
      stream.synchronize();
      return out;
    });
  }
}

TEST_P(RowsAlone, Activations) {
  constexpr std::int64_t kTokens = 30, kWidth = 263;
  for (const ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kSwiGlu, ActivationKind::kGeluErf,
        ActivationKind::kRelu2, ActivationKind::kGeGlu, ActivationKind::kClampedSwiGlu}) {
    const std::int64_t inputs = is_gated(kind) ? 2 * kWidth : kWidth;
    const OwnedTensor x = random(kTokens * inputs, 1, 4.0), dy = random(kTokens * kWidth, 2);
    expect_rows_alone_equal_rows_inside(kTokens, [&](Stream& stream, const Rows& rows) {
      const OwnedTensor row_x = rows_of(x, rows, kTokens), row_dy = rows_of(dy, rows, kTokens);
      Outputs out{empty(rows.count * kWidth), empty(rows.count * inputs)};
      activation_forward(stream, {{kind, rows.count, kWidth}, row_x, out[0]});
      activation_backward(stream, {{kind, rows.count, kWidth}, row_x, row_dy, out[1]});
      stream.synchronize();
      return out;
    });
  }
}

TEST_P(RowsAlone, EmbeddingAndCrossEntropy) {
  constexpr std::int64_t kTokens = 24, kVocab = 1009, kWidth = 70;
  const OwnedTensor logits = random(kTokens * kVocab, 1, 6.0), table = random(kVocab * kWidth, 2);
  const auto tokens = test::random_tokens(kTokens, kVocab, 3);
  expect_rows_alone_equal_rows_inside(kTokens, [&](Stream& stream, const Rows& rows) {
    const OwnedTensor row_tokens(std::vector<std::int32_t>(
        tokens.begin() + rows.first, tokens.begin() + rows.first + rows.count));
    Outputs out{
        empty(rows.count * kWidth), {DType::kF32, rows.count}, rows_of(logits, rows, kTokens)};
    embedding_forward(stream, {.sequences = 1,
                               .positions = rows.count,
                               .width = kWidth,
                               .vocab_size = kVocab,
                               .tokens = row_tokens,
                               .token_weight = table,
                               .position_weight = {},
                               .dropout = {},
                               .y = out[0]});
    cross_entropy(stream, {.tokens = rows.count,
                           .vocab_size = kVocab,
                           .logits = out[2],
                           .targets = row_tokens,
                           .losses = out[1],
                           .gradient = true,
                           .grad_scale = 0.25f});
    stream.synchronize();
    return out;
  });
}

// qkv after rotary, out, lse and dqkv of some sequences, or of their first positions.
Outputs attend(Stream& stream, const AttentionShape& shape, const OwnedTensor& qkv,
               const OwnedTensor& dout) {
  const DType dtype = qkv.tensor().dtype;
  Outputs out{qkv, {dtype, dout.numel()}, {DType::kF32, shape.tokens() * shape.query_heads}, qkv};
  OwnedTensor table(DType::kF32, shape.positions * shape.head_width);
  rotary_table(stream, table, shape.positions, shape.head_width, {.theta = 1e4});
  rotary(stream, {shape.sequences, shape.positions, shape.query_heads, shape.kv_heads,
                  shape.head_width, table, out[0]});
  OwnedTensor workspace =
      test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
  attention_forward(stream, {shape, out[0], {}, out[1], out[2], workspace});
  attention_backward(stream, {shape, out[0], out[1], out[2], dout, {}, out[3], workspace});
  stream.synchronize();
  return out;
}

constexpr AttentionShape kAttention{
    .sequences = 4, .positions = 290, .query_heads = 4, .kv_heads = 2, .head_width = 24};

// Plain attention, and one with a window, a soft cap and a scale.
std::vector<AttentionShape> attentions() {
  AttentionShape windowed = kAttention;
  windowed.window = 57;
  windowed.softcap = 3.0f;
  windowed.scale = 0.3f;
  return {kAttention, windowed};
}

TEST_P(RowsAlone, SequencesOfRotaryAndAttention) {
  for (const AttentionShape& all : attentions()) {
    const OwnedTensor qkv = random(all.tokens() * all.packed_width(), 1);
    const OwnedTensor dout = random(all.tokens() * all.query_heads * all.head_width, 2);
    expect_rows_alone_equal_rows_inside(all.sequences, [&](Stream& stream, const Rows& rows) {
      AttentionShape shape = all;
      shape.sequences = rows.count;
      return attend(stream, shape, rows_of(qkv, rows, all.sequences),
                    rows_of(dout, rows, all.sequences));
    });
  }
}

// What comes later in a sequence changes nothing of what a causal row computes.
TEST_P(RowsAlone, FirstPositionsOfAttention) {
  for (AttentionShape all : attentions()) {
    all.sequences = 1;
    const OwnedTensor qkv = random(all.tokens() * all.packed_width(), 1);
    const OwnedTensor dout = random(all.tokens() * all.query_heads * all.head_width, 2);
    const auto first_positions = [&](std::int64_t positions) {
      AttentionShape shape = all;
      shape.positions = positions;
      const Rows rows{0, positions};
      return test::on_any_number_of_threads([&](Stream& stream) {
        Outputs out = attend(stream, shape, rows_of(qkv, rows, all.positions),
                             rows_of(dout, rows, all.positions));
        while (out.size() > 2) out.pop_back();  // lse lies head by head; gradients of keys are sums
        return out;
      });
    };
    const Outputs whole = first_positions(all.positions);
    for (const std::int64_t positions : {1, 17, 24, 100, 257}) {
      const Outputs part = first_positions(positions);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(test::same_bits(part[i], rows_of(whole[i], {0, positions}, all.positions)))
            << "output " << i << ", " << positions << " positions";
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
