// Attention of a part of the queries, against attention of all of them: a query's results are bit-identical,
// and gradients of keys and values add up to the whole's.
#include <gtest/gtest.h>

#include "core/thread_team.h"
#include "kernels/attention.h"
#include "kernels/columns.h"
#include "tests/support/models/documents.h"
#include "tests/support/values/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class QueriesAlone : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, QueriesAlone, test::compute_types(), test::type_name);

struct Inputs {
  OwnedTensor qkv, dout;
  Dropout dropout;
  Documents documents;
};

// Elements [first, first + count) of each sequence.
OwnedTensor queries_of(const OwnedTensor& rows, std::int64_t sequences, std::int64_t first,
                       std::int64_t count) {
  const Values all = rows.values();
  const auto sequence = std::ssize(all) / sequences;
  Values part;
  for (std::int64_t b = 0; b < sequences; ++b) {
    const auto begin = all.begin() + b * sequence + first;
    part.insert(part.end(), begin, begin + count);
  }
  return {rows.tensor().dtype, part};
}

// out, lse, dQ, and the f32 gradients of keys and values.
Outputs attend(Stream& stream, const AttentionShape& shape, const Inputs& inputs,
               const ConstTensor& keys_values) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t queries = shape.query_tokens(), width = shape.query_heads * shape.head_width;
  OwnedTensor dqkv(dtype, queries * shape.packed_width());
  Outputs out{{dtype, queries * width},
              {DType::kF32, queries * shape.query_heads},
              {dtype, queries * width},
              {DType::kF32, shape.tokens() * 2 * shape.kv_heads * shape.head_width}};
  OwnedTensor workspace =
      test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
  attention_forward(stream, {.shape = shape,
                             .qkv = inputs.qkv,
                             .dropout = inputs.dropout,
                             .out = out[0],
                             .lse = out[1],
                             .workspace = workspace,
                             .documents = inputs.documents,
                             .keys_values = keys_values});
  attention_backward(stream, {.shape = shape,
                              .qkv = inputs.qkv,
                              .out = out[0],
                              .lse = out[1],
                              .dout = inputs.dout,
                              .dropout = inputs.dropout,
                              .dqkv = dqkv,
                              .workspace = workspace,
                              .documents = inputs.documents,
                              .dkv = out[3],
                              .keys_values = keys_values});
  move_columns(stream, {queries, shape.packed_width(), 0, width}, dqkv, {queries, width, 0, width},
               out[2]);
  stream.synchronize();
  return out;
}

void expect_parts_make_the_whole(DType dtype, const AttentionShape& whole, double dropout,
                                 Documents documents = {}) {
  const std::int64_t B = whole.sequences, S = whole.positions, K = whole.head_width;
  const std::int64_t width = whole.query_heads * K, kv_width = 2 * whole.kv_heads * K;
  const Inputs all{{dtype, test::random_values(whole.tokens() * whole.packed_width(), 1, 1.0)},
                   {dtype, test::random_values(whole.tokens() * width, 2, 1.0)},
                   {.probability = static_cast<float>(dropout), .address = {3, 4, 5}},
                   documents};
  const Outputs expected = test::on_any_number_of_threads(
      [&](Stream& stream) { return attend(stream, whole, all, {}); });
  OwnedTensor keys_values(dtype, whole.tokens() * kv_width);
  const auto stream = make_cpu_compute_stream({});
  move_columns(*stream, {whole.tokens(), whole.packed_width(), width, kv_width}, all.qkv,
               {whole.tokens(), kv_width, 0, kv_width}, keys_values);
  stream->synchronize();
  Values sum(static_cast<std::size_t>(expected[3].numel()));
  // Parts that begin and end inside of strips and tiles.
  const std::vector<std::int64_t> ends{100, 101, 221, S - 10, S};
  documents.positions = {};  // those of a part are its own, and not needed here
  std::int64_t first = 0;
  for (const std::int64_t end : ends) {
    AttentionShape part = whole;
    part.first_query = first;
    part.queries = end - first;
    const auto own = [&](const OwnedTensor& rows, std::int64_t per_row) {
      return queries_of(rows, B, first * per_row, part.queries * per_row);
    };
    const Inputs inputs{own(all.qkv, whole.packed_width()), own(all.dout, width), all.dropout,
                        documents};
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& s) { return attend(s, part, inputs, keys_values); });
    EXPECT_TRUE(test::same_bits(out[0], own(expected[0], width))) << "out from " << first;
    EXPECT_TRUE(test::same_bits(
        out[1], queries_of(expected[1], B * whole.query_heads, first, part.queries)))
        << "lse from " << first;
    EXPECT_TRUE(test::same_bits(out[2], own(expected[2], width))) << "dQ from " << first;
    const Values gradients = out[3].values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[i];
    first = end;
  }
  EXPECT_TRUE(test::close(expected[3], sum, {1e-5, 1e-5}));
}

TEST_P(QueriesAlone, HaveTheirBitsAndGradientsOfKeysAddUp) {
  const AttentionShape plain{
      .sequences = 2, .positions = 290, .query_heads = 4, .kv_heads = 2, .head_width = 24};
  AttentionShape windowed = plain;
  windowed.window = 20;  // the last part's queries see none of the first tile's keys
  windowed.softcap = 3.0f;
  windowed.scale = 0.3f;
  expect_parts_make_the_whole(GetParam(), plain, 0.0);
  expect_parts_make_the_whole(GetParam(), plain, 0.3);
  expect_parts_make_the_whole(GetParam(), windowed, 0.0);
}

// A part that begins at an odd position and is longer than a tile of queries.
TEST_P(QueriesAlone, HaveTheirBitsWhereTheirPairsBeginBeforeThem) {
  const AttentionShape shape{
      .sequences = 1, .positions = 700, .query_heads = 2, .kv_heads = 1, .head_width = 9};
  expect_parts_make_the_whole(GetParam(), shape, 0.0);
}

// Parts with the begin, the middle or the end of a document, with none of its queries or with padding alone.
TEST_P(QueriesAlone, HaveTheirBitsInsideOfDocuments) {
  const auto documents = test::documents_in_rows();
  AttentionShape shape{.sequences = 2,
                       .positions = test::kDocumentPositions,
                       .query_heads = 4,
                       .kv_heads = 2,
                       .head_width = 24};
  expect_parts_make_the_whole(GetParam(), shape, 0.0, documents);
  expect_parts_make_the_whole(GetParam(), shape, 0.3, documents);
  shape.window = 20;
  expect_parts_make_the_whole(GetParam(), shape, 0.0, documents);
}

}  // namespace
}  // namespace sherd::kernels
