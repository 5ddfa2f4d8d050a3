// Attention of blocks of keys on a GPU, whose results are merged: that of all keys on a CPU, but for rounding, and
// gradients too. In 16 bits cuDNN computes those that no window cuts.
#include <gtest/gtest.h>

#include "kernels/device_common/attention.h"
#include "tests/kernels/attention_blocks.h"
#include "tests/support/devices/place.h"
#include "tests/support/models/documents.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using device_common::attention_form;
using device_common::AttentionForm;
using test::Outputs;
using test::Place;

class CudaAttentionBlocks : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionBlocks, test::compute_types(), test::type_name);

Outputs in_blocks(const AttentionShape& shape, const AttentionInputs& inputs, bool apart) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  const auto host = make_cpu_compute_stream({});
  const OwnedTensor keys_values = keys_and_values(*host, shape, inputs.qkv);
  return test::on_gpu([&](Place& place) {
    Outputs results{{DType::kF32, T * width},
                    {DType::kF32, T * shape.query_heads},
                    {DType::kF32, T * width},
                    {DType::kF32, keys_values.numel()}};
    OwnedTensor out(dtype, T * width);
    AttentionInputs there = inputs;
    if (inputs.documents) {
      there.documents = {place.in(inputs.documents.starts), place.in(inputs.documents.lengths), {}};
    }
    attend_in_blocks(place.stream(), shape, there,
                     {.qkv = place.in(inputs.qkv),
                      .dout = place.in(inputs.dout),
                      .keys_values = apart ? place.in(keys_values) : ConstTensor(),
                      .out = place.out(results[0]),
                      .out_rounded = place.out(out),
                      .lse = place.out(results[1]),
                      .dq = place.out(results[2]),
                      .dkv = place.out(results[3]),
                      .workspace = place.scratch(attention_workspace_bytes(
                          block_of(shape, 0, 0), dtype, place.device()))});
    place.finish();
    return results;
  });
}

AttentionInputs inputs_of(DType dtype, const AttentionShape& shape, double dropout,
                          const Documents& documents) {
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  return {{dtype, test::random_values(T * shape.packed_width(), 1, 1.0)},
          {dtype, test::random_values(T * width, 2, 1.0)},
          {.probability = static_cast<float>(dropout), .address = {3, 4, 5}},
          documents};
}

void expect_blocks_make_the_whole(DType dtype, const AttentionShape& shape, double dropout,
                                  bool apart, Documents documents = {}) {
  const std::int64_t B = shape.sequences, width = shape.query_heads * shape.head_width;
  const AttentionInputs all = inputs_of(dtype, shape, dropout, documents);
  const auto stream = make_cpu_compute_stream({});
  const AttentionResults expected = whole(*stream, shape, all);
  documents.positions = {};
  const AttentionInputs inputs{moved(all.qkv, B, shape.packed_width(), false),
                               moved(all.dout, B, width, false), all.dropout, documents};
  const Outputs results = in_blocks(shape, inputs, apart);
  const auto back = [&](std::size_t i, std::int64_t outer, std::int64_t inner) {
    return moved(results[i], outer, inner, true);
  };
  // cuDNN's results of each block are rounded, and added up.
  const double relative = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 1e-2 : 4e-2;
  const test::Tolerance rounding{relative, relative, 1e-6};
  EXPECT_TRUE(test::close(back(0, B, width), expected.out.values(), rounding)) << "out";
  EXPECT_TRUE(test::close(back(1, B * shape.query_heads, 1), expected.lse.values(), {1e-6, 1e-5}))
      << "lse";
  EXPECT_TRUE(test::close(back(2, B, width), expected.dq.values(), rounding)) << "dQ";
  EXPECT_TRUE(test::close(back(3, B, 2 * shape.kv_heads * shape.head_width), expected.dkv.values(),
                          rounding))
      << "dK, dV";
}

// Three tiles of 32 in a block, the last not full; in 16 bits cuDNN's.
TEST_P(CudaAttentionBlocks, MergedAreTheAttentionOfAllKeysAndSoAreTheirGradients) {
  const AttentionShape shape{
      .sequences = 2, .positions = 330, .query_heads = 4, .kv_heads = 2, .head_width = 8};
  expect_blocks_make_the_whole(GetParam(), shape, 0.0, true);
}

// Heads of a width that cuDNN doesn't take, with the CPU's masks.
TEST_P(CudaAttentionBlocks, OfOurOwnKernelsHaveTheCpusMasks) {
  AttentionShape shape{
      .sequences = 2, .positions = 170, .query_heads = 4, .kv_heads = 2, .head_width = 6};
  shape.first_query_head = 4;
  shape.all_query_heads = 12;
  expect_blocks_make_the_whole(GetParam(), shape, 0.3, false);
}

// Windows that end inside of a block, in its first position, or before it; wider ones cut farther blocks only.
TEST_P(CudaAttentionBlocks, OfWindowsAndSoftCapsToo) {
  for (const std::int64_t window : {1, 33, 34, 35, 90}) {
    AttentionShape shape{
        .sequences = 1, .positions = 170, .query_heads = 2, .kv_heads = 1, .head_width = 8};
    shape.window = window;
    shape.softcap = window == 34 ? 3.0f : 0.0f;
    shape.scale = 0.3f;
    SCOPED_TRACE(window);
    expect_blocks_make_the_whole(GetParam(), shape, 0.0, window == 34);
  }
}

// Documents that lie in one block or in several; blocks with padding alone.
TEST_P(CudaAttentionBlocks, StayInsideOfDocuments) {
  const auto documents = test::documents_in_rows();
  const AttentionShape shape{.sequences = 2,
                             .positions = test::kDocumentPositions,
                             .query_heads = 2,
                             .kv_heads = 1,
                             .head_width = 8};
  expect_blocks_make_the_whole(GetParam(), shape, 0.3, true, documents);
}

// It isn't known what a mask that cuDNN draws drops; but gradients follow the mask. For any D = <dout, out>, linear in
// dout: <dout, out> summed over all queries is <dV, V>, since out is linear in V under one mask.
TEST_P(CudaAttentionBlocks, DropoutHasOneMaskInBothDirections) {
  const AttentionShape shape{
      .sequences = 2, .positions = 160, .query_heads = 2, .kv_heads = 1, .head_width = 8};
  const std::int64_t width = 16, kv_width = 16;
  const AttentionInputs inputs = inputs_of(GetParam(), shape, 0.3, {});
  const Outputs results = in_blocks(shape, inputs, true);
  const Outputs kept = in_blocks(shape, inputs_of(GetParam(), shape, 0.0, {}), true);
  const Values out = results[0].values(), dout = inputs.dout.values();
  const Values dkv = results[3].values(), qkv = inputs.qkv.values();
  double of_out = 0.0, of_values = 0.0, size = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) of_out += out[i] * dout[i];
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    for (std::int64_t c = 0; c < kv_width / 2; ++c) {
      const double term = dkv[static_cast<std::size_t>(t * kv_width + kv_width / 2 + c)] *
                          qkv[static_cast<std::size_t>(t * 32 + width + kv_width / 2 + c)];
      of_values += term;
      size += std::abs(term);
    }
  }
  const double tolerance = GetParam() == DType::kF32 ? 1e-6 : 1e-3;
  EXPECT_NEAR(of_out, of_values, tolerance * size);
  EXPECT_FALSE(test::same_bits(results[0], kept[0]));
  // Scores aren't dropped.
  EXPECT_TRUE(test::same_bits(results[1], kept[1]));
}

TEST(CudaAttentionForm, CudnnIsAskedForBlocksThatNoWindowCuts) {
  AttentionShape shape{
      .sequences = 2, .positions = 400, .query_heads = 4, .kv_heads = 2, .head_width = 64};
  shape.first_query = 300;
  shape.queries = 100;
  shape.block = {.first_key = 100, .keys = 100, .rows = 200};
  const auto form = [&](std::int64_t window, DType dtype = DType::kBF16, bool documents = false) {
    shape.window = window;
    return attention_form(shape, dtype, documents);
  };
  EXPECT_EQ(form(0), AttentionForm::kCudnn);
  EXPECT_EQ(form(300), AttentionForm::kCudnn);  // the last query sees the first key
  EXPECT_EQ(form(299), AttentionForm::kOwn);
  EXPECT_EQ(form(0, DType::kF32), AttentionForm::kOwn);
  EXPECT_EQ(form(0, DType::kBF16, true), AttentionForm::kOwn);
  shape.shares_keys = true;  // gradients are added in f32 in any case
  EXPECT_EQ(form(0), AttentionForm::kCudnn);
  shape.block.first_key = 300;
  EXPECT_EQ(form(100), AttentionForm::kCudnn);
  EXPECT_EQ(form(99), AttentionForm::kOwn);
}

TEST(CudaAttentionForm, ABlocksScratchHoldsItsResultsAndCudnnsOwn) {
  AttentionShape shape{
      .sequences = 2, .positions = 4096, .query_heads = 4, .kv_heads = 2, .head_width = 64};
  shape.queries = 1024;
  shape.block = {.first_key = 0, .keys = 1024, .rows = 2048};
  for (const bool deterministic : {false, true}) {
    const ComputeDevice gpu{DeviceKind::kCuda, 1, deterministic};
    AttentionShape alone{
        .sequences = 2, .positions = 1024, .query_heads = 4, .kv_heads = 2, .head_width = 64};
    const std::int64_t cudnns = attention_workspace_bytes(alone, DType::kBF16, gpu);
    // lse and gradients of queries, keys and values of a half.
    EXPECT_EQ(attention_workspace_bytes(shape, DType::kBF16, gpu),
              cudnns + 2 * 4 * 1024 * 4 + 2 * 1024 * 8 * 64 * 2);
  }
  const ComputeDevice gpu{DeviceKind::kCuda, 1, true};
  EXPECT_EQ(attention_workspace_bytes(shape, DType::kF32, gpu), 2 * 2048 * 4 * 4);
}

}  // namespace
}  // namespace sherd::kernels
