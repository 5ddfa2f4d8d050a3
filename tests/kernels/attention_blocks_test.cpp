// Attention of blocks of keys, whose results are merged: that of all keys, but for rounding, and gradients too.
#include "tests/kernels/attention_blocks.h"

#include "core/thread_team.h"
#include "tests/support/models/documents.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;

class AttentionBlocks : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionBlocks, test::compute_types(), test::type_name);

Outputs in_blocks(Stream& stream, const AttentionShape& shape, const AttentionInputs& inputs,
                  bool apart) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  const OwnedTensor keys_values = keys_and_values(stream, shape, inputs.qkv);
  Outputs results{{DType::kF32, T * width},
                  {DType::kF32, T * shape.query_heads},
                  {DType::kF32, T * width},
                  {DType::kF32, keys_values.numel()}};
  OwnedTensor out(dtype, T * width);
  OwnedTensor workspace = test::workspace(
      attention_workspace_bytes(block_of(shape, 0, 0), dtype, compute_device(stream)));
  attend_in_blocks(stream, shape, inputs,
                   {.qkv = inputs.qkv,
                    .dout = inputs.dout,
                    .keys_values = apart ? ConstTensor(keys_values) : ConstTensor(),
                    .out = results[0],
                    .out_rounded = out,
                    .lse = results[1],
                    .dq = results[2],
                    .dkv = results[3],
                    .workspace = workspace});
  stream.synchronize();
  return results;
}

void expect_blocks_make_the_whole(DType dtype, const AttentionShape& shape, double dropout,
                                  Documents documents = {}, double of_f32 = 1e-5,
                                  double of_16_bits = 1e-2) {
  const std::int64_t B = shape.sequences, T = shape.tokens(), K = shape.head_width;
  const std::int64_t width = shape.query_heads * K;
  const AttentionInputs all{{dtype, test::random_values(T * shape.packed_width(), 1, 1.0)},
                            {dtype, test::random_values(T * width, 2, 1.0)},
                            {.probability = static_cast<float>(dropout), .address = {3, 4, 5}},
                            documents};
  const auto stream = make_cpu_compute_stream({});
  const AttentionResults expected = whole(*stream, shape, all);
  documents.positions = {};  // those of a part are its own, and not needed here
  const AttentionInputs inputs{moved(all.qkv, B, shape.packed_width(), false),
                               moved(all.dout, B, width, false), all.dropout, documents};
  // Rounded once, where the whole's is; what is summed from rounded outputs moves with them.
  const double relative = dtype == DType::kF32 ? of_f32 : of_16_bits;
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
TEST_P(AttentionBlocks, OfLargeScoresAreMergedAfterTheLargerMaximum) {
  AttentionShape shape{
      .sequences = 1, .positions = 60, .query_heads = 1, .kv_heads = 1, .head_width = 8};
  shape.scale = 30.0f;
  // In bf16 the scores' gradients are rounded, and times 30 they cancel.
  expect_blocks_make_the_whole(GetParam(), shape, 0.0, {}, 1e-3, 5e-2);
}

}  // namespace
}  // namespace sherd::kernels
