// Attention of blocks of keys, whose results are merged: that of all keys, but for rounding, and gradients too.
#include <gtest/gtest.h>

#include <cmath>

#include "core/thread_team.h"
#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/pointwise.h"
#include "tests/support/documents.h"
#include "tests/support/tensors.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class AttentionBlocks : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionBlocks, test::compute_types(), test::type_name);

struct Inputs {
  OwnedTensor qkv, dout;
  Dropout dropout;
  Documents documents;
};

constexpr std::size_t kBlocks = 5;
constexpr std::size_t kPlaces[kBlocks] = {3, 0, 4, 1, 2};  // where block i of a sequence stands

// Of [outer, S, inner], the blocks of S in their places; or back.
OwnedTensor moved(const OwnedTensor& from, std::int64_t outer, std::int64_t inner, bool back) {
  const Values values = from.values();
  Values to(values.size());
  const std::int64_t sequence = std::ssize(values) / outer;
  const std::int64_t block = sequence / inner / static_cast<std::int64_t>(kBlocks) * inner;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::int64_t here = o * sequence + static_cast<std::int64_t>(i) * block;
      const std::int64_t there = o * sequence + static_cast<std::int64_t>(kPlaces[i]) * block;
      const auto begin = values.begin() + (back ? there : here);
      std::copy(begin, begin + block, to.begin() + (back ? here : there));
    }
  }
  return {from.tensor().dtype, to};
}

// out, lse, dQ, and the gradients of keys and values, f32 but for the first.
struct Results {
  OwnedTensor out, lse, dq, dkv;
};

Results whole(Stream& stream, const AttentionShape& shape, const Inputs& inputs) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  OwnedTensor dqkv(dtype, T * shape.packed_width()), out(dtype, T * width), dq(dtype, T * width);
  OwnedTensor lse(DType::kF32, T * shape.query_heads);
  OwnedTensor dkv(DType::kF32, T * 2 * shape.kv_heads * shape.head_width);
  OwnedTensor workspace =
      test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
  attention_forward(stream, {.shape = shape,
                             .qkv = inputs.qkv,
                             .dropout = inputs.dropout,
                             .out = out,
                             .lse = lse,
                             .workspace = workspace,
                             .documents = inputs.documents});
  attention_backward(stream, {.shape = shape,
                              .qkv = inputs.qkv,
                              .out = out,
                              .lse = lse,
                              .dout = inputs.dout,
                              .dropout = inputs.dropout,
                              .dqkv = dqkv,
                              .workspace = workspace,
                              .documents = inputs.documents,
                              .dkv = dkv});
  move_columns(stream, {T, shape.packed_width(), 0, width}, dqkv, {T, width, 0, width}, dq);
  return {out, lse, dq, dkv};
}

// A block of the queries and one of the keys, where these stand.
AttentionShape block_of(const AttentionShape& whole, std::size_t query, std::size_t key) {
  const std::int64_t size = whole.positions / static_cast<std::int64_t>(kBlocks);
  const auto at = [size](std::size_t i) { return static_cast<std::int64_t>(i) * size; };
  AttentionShape shape = whole;
  shape.first_query = at(query);
  shape.queries = size;
  shape.block = {.first_key = at(key),
                 .keys = size,
                 .rows = whole.positions,
                 .query_row = at(kPlaces[query]),
                 .key_row = at(kPlaces[key])};
  return shape;
}

// Keys of the queries' own block first, then the others in an order of a ring: latest first.
template <class Visit>
void for_each_pair(const Visit& visit) {
  for (std::size_t query = 0; query < kBlocks; ++query) {
    for (std::size_t key = query + 1; key-- > 0;) visit(query, key);
  }
}

Outputs in_blocks(Stream& stream, const AttentionShape& shape, const Inputs& inputs, bool apart) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  const std::int64_t kv_width = 2 * shape.kv_heads * shape.head_width;
  Outputs results{{DType::kF32, T * width},
                  {DType::kF32, T * shape.query_heads},
                  {DType::kF32, T * width},
                  {DType::kF32, T * kv_width}};
  OwnedTensor keys_values(dtype, T * kv_width), out(dtype, T * width);
  move_columns(stream, {T, shape.packed_width(), width, kv_width}, inputs.qkv,
               {T, kv_width, 0, kv_width}, keys_values);
  OwnedTensor workspace = test::workspace(
      attention_workspace_bytes(block_of(shape, 0, 0), dtype, compute_device(stream)));
  fill_constant(stream, results[0], NAN);  // what is there before is not read
  fill_constant(stream, results[1], NAN);
  const ConstTensor keys = apart ? ConstTensor(keys_values) : ConstTensor();
  for_each_pair([&](std::size_t query, std::size_t key) {
    attention_forward(stream, {.shape = block_of(shape, query, key),
                               .qkv = inputs.qkv,
                               .dropout = inputs.dropout,
                               .out = results[0],
                               .lse = results[1],
                               .workspace = workspace,
                               .documents = inputs.documents,
                               .keys_values = keys,
                               .merge = key != query});
  });
  cast(stream, results[0], out);
  fill_zero(stream, results[2]);
  fill_zero(stream, results[3]);
  for_each_pair([&](std::size_t query, std::size_t key) {
    attention_backward(stream, {.shape = block_of(shape, query, key),
                                .qkv = inputs.qkv,
                                .out = out,
                                .lse = results[1],
                                .dout = inputs.dout,
                                .dropout = inputs.dropout,
                                .dqkv = {},
                                .workspace = workspace,
                                .documents = inputs.documents,
                                .dkv = results[3],
                                .keys_values = keys,
                                .dq = results[2]});
  });
  stream.synchronize();
  return results;
}

void expect_blocks_make_the_whole(DType dtype, const AttentionShape& shape, double dropout,
                                  Documents documents = {}, double of_f32 = 1e-5) {
  const std::int64_t B = shape.sequences, T = shape.tokens(), K = shape.head_width;
  const std::int64_t width = shape.query_heads * K;
  const Inputs all{{dtype, test::random_values(T * shape.packed_width(), 1, 1.0)},
                   {dtype, test::random_values(T * width, 2, 1.0)},
                   {.probability = static_cast<float>(dropout), .address = {3, 4, 5}},
                   documents};
  const auto stream = make_cpu_compute_stream({});
  const Results expected = whole(*stream, shape, all);
  documents.positions = {};  // those of a part are its own, and not needed here
  const Inputs inputs{moved(all.qkv, B, shape.packed_width(), false),
                      moved(all.dout, B, width, false), all.dropout, documents};
  // Rounded once, where the whole's is; what is summed from rounded outputs moves with them.
  const double relative = dtype == DType::kF32 ? of_f32 : 1e-2;
  // A query that sees one key has a gradient of 0 but for its output's rounding.
  const test::Tolerance rounding{relative, relative, 1e-6};
  for (const bool apart : {false, true}) {
    const Outputs results = test::on_any_number_of_threads(
        [&](Stream& s) { return in_blocks(s, shape, inputs, apart); });
    const auto back = [&](std::size_t i, std::int64_t outer, std::int64_t inner) {
      return moved(results[i], outer, inner, true);
    };
    EXPECT_TRUE(test::close(back(0, B, width), expected.out.values(), rounding)) << "out";
    EXPECT_TRUE(test::close(back(1, B * shape.query_heads, 1), expected.lse.values(), {1e-6, 1e-5}))
        << "lse";
    EXPECT_TRUE(test::close(back(2, B, width), expected.dq.values(), rounding)) << "dQ";
    EXPECT_TRUE(test::close(back(3, B, 2 * shape.kv_heads * K), expected.dkv.values(), rounding))
        << "dK, dV";
  }
}

TEST_P(AttentionBlocks, MergedAreTheAttentionOfAllKeysAndSoAreTheirGradients) {
  const AttentionShape plain{
      .sequences = 2, .positions = 310, .query_heads = 4, .kv_heads = 2, .head_width = 24};
  expect_blocks_make_the_whole(GetParam(), plain, 0.0);
  expect_blocks_make_the_whole(GetParam(), plain, 0.3);
  AttentionShape some_heads = plain;
  some_heads.first_query_head = 4;
  some_heads.all_query_heads = 12;
  expect_blocks_make_the_whole(GetParam(), some_heads, 0.3);
}

// Windows that end inside of a block, in its first position, or before it; one as wide as the row.
TEST_P(AttentionBlocks, OfWindowsAndSoftCapsToo) {
  for (const std::int64_t window : {1, 20, 62, 63, 64, 130, 310}) {
    AttentionShape shape{
        .sequences = 2, .positions = 310, .query_heads = 2, .kv_heads = 1, .head_width = 24};
    shape.window = window;
    shape.softcap = 3.0f;
    shape.scale = 0.3f;
    SCOPED_TRACE(window);
    expect_blocks_make_the_whole(GetParam(), shape, window == 64 ? 0.3 : 0.0);
  }
}

// Documents that lie in one block or in several; blocks with padding alone.
TEST_P(AttentionBlocks, StayInsideOfDocuments) {
  const auto documents = test::documents_in_rows();
  AttentionShape shape{.sequences = 2,
                       .positions = test::kDocumentPositions,
                       .query_heads = 4,
                       .kv_heads = 2,
                       .head_width = 24};
  expect_blocks_make_the_whole(GetParam(), shape, 0.0, documents);
  expect_blocks_make_the_whole(GetParam(), shape, 0.3, documents);
  shape.window = 20;
  expect_blocks_make_the_whole(GetParam(), shape, 0.0, documents);
}

// Scores so large that exponentials of a block alone would overflow f32.
TEST_P(AttentionBlocks, OfLargeScoresAreMergedBehindTheLargerMaximum) {
  AttentionShape shape{
      .sequences = 1, .positions = 60, .query_heads = 1, .kv_heads = 1, .head_width = 8};
  shape.scale = 30.0f;
  expect_blocks_make_the_whole(GetParam(), shape, 0.0, {}, 1e-3);
}

}  // namespace
}  // namespace sherd::kernels
