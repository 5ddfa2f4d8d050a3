// Attention with a cache against attention over the whole sequence: bit for bit, however the sequence
// is cut into calls.
#include "kernels/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/attention.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

// H query heads of width K read G key/value heads.
struct Case {
  const char* name;
  AttentionShape shape;
};

std::vector<Case> cases() {
  const AttentionShape plain{
      .sequences = 1, .positions = 290, .query_heads = 4, .kv_heads = 2, .head_width = 24};
  AttentionShape windowed = plain, one_head = plain, wide = plain, long_window = plain;
  windowed.window = 57;
  windowed.softcap = 3.0f;
  windowed.scale = 0.3f;
  one_head.query_heads = 5;
  one_head.kv_heads = 1;
  wide.query_heads = wide.kv_heads = 2;
  wide.head_width = 70;  // not a whole number of panels
  // Long enough for several pieces of the depth (panels.h), which begin with the strip's first key.
  long_window.positions = 640;
  long_window.window = 333;
  return {{"plain", plain},
          {"windowed", windowed},
          {"one kv head", one_head},
          {"wide", wide},
          {"long window", long_window}};
}

OwnedTensor whole(const AttentionShape& shape, const OwnedTensor& qkv) {
  return std::move(test::on_any_number_of_threads([&](Stream& stream) {
    const DType dtype = qkv.tensor().dtype;
    const std::int64_t heads = shape.tokens() * shape.query_heads;
    Outputs out{{dtype, heads * shape.head_width}};
    OwnedTensor lse(DType::kF32, heads);
    OwnedTensor workspace =
        test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
    attention_forward(stream, {shape, qkv, {}, out[0], lse, workspace});
    stream.synchronize();
    return out;
  })[0]);
}

// In calls of `counts` tokens, with a cache that has room for a few more.
OwnedTensor in_pieces(const AttentionShape& shape, const OwnedTensor& qkv,
                      const std::vector<std::int64_t>& counts) {
  AttentionShape room = shape;
  room.positions += 13;
  return std::move(test::on_any_number_of_threads([&](Stream& stream) {
    const std::int64_t out_width = shape.query_heads * shape.head_width;
    Outputs out{{qkv.tensor().dtype, shape.tokens() * out_width}};
    OwnedTensor cache(DType::kF32, kv_cache_numel(room));
    OwnedTensor workspace =
        test::workspace(cached_attention_workspace_bytes(room, compute_device(stream)));
    std::int64_t first = 0;
    for (const std::int64_t count : counts) {
      cached_attention(stream, {.shape = room,
                                .first = first,
                                .count = count,
                                .qkv = qkv.tensor().part(first * shape.packed_width(),
                                                         count * shape.packed_width()),
                                .cache = cache,
                                .out = out[0].tensor().part(first * out_width, count * out_width),
                                .workspace = workspace});
      first += count;
    }
    stream.synchronize();
    return out;
  })[0]);
}

class KvCache : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, KvCache, test::compute_types(), test::type_name);

TEST_P(KvCache, GivesTheBitsOfOnePassHoweverTheTokensAreCutIntoCalls) {
  for (const auto& [name, shape] : cases()) {
    const OwnedTensor qkv(GetParam(),
                          test::random_values(shape.tokens() * shape.packed_width(), 1, 2.0));
    const OwnedTensor expected = whole(shape, qkv);
    const std::int64_t S = shape.positions;
    const std::vector<std::vector<std::int64_t>> cuts = {
        {S}, {1, S - 1}, {23, 2, 24, 48, 1, 1, 1, S - 100}, std::vector<std::int64_t>(S, 1)};
    for (const auto& cut : cuts) {
      EXPECT_TRUE(test::same_bits(in_pieces(shape, qkv, cut), expected))
          << name << ", " << cut.size() << " calls";
    }
  }
}

TEST(KvCacheSize, HoldsKeysAndValuesOfEveryHeadInWholePanels) {
  const AttentionShape shape{
      .sequences = 1, .positions = 64, .query_heads = 6, .kv_heads = 3, .head_width = 32};
  EXPECT_EQ(kv_cache_numel(shape), 3 * 2 * 64 * 32);
}

}  // namespace
}  // namespace sherd::kernels
