// cuDNN's plans for attention, made without a GPU for one that is described to it: that our graphs
// are accepted, and that what their plans want fits into the reserve of the memory plan.
#include "kernels/cuda/attention_graph.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kernels/device_common/attention.h"
#include "tests/cuda_plans/h100.h"

namespace sherd::kernels::cuda {
namespace {

// A micro-batch of each recipe, shapes next to multiples of tiles, and what whole runs of the suite train, from the
// shortest sequence that cuDNN is given (tests/equivalence/cuda_run_test.cpp: 3:1 heads of width 8).
const AttentionShape kShapes[] = {
    {16, 1024, 12, 12, 64}, {4, 2048, 32, 8, 64}, {2, 4096, 32, 8, 128}, {12, 256, 6, 6, 64},
    {2, 65, 4, 4, 8},       {1, 65, 6, 2, 64},    {1, 150, 4, 2, 24},    {2, 128, 4, 1, 128},
    {1, 200, 2, 2, 128},    {3, 67, 4, 2, 64},    {2, 2, 3, 1, 8},       {2, 3, 3, 1, 8},
    {1, 8, 3, 1, 8},        {2, 9, 3, 1, 8},      {4, 9, 3, 1, 8},       {2, 16, 3, 1, 8},
    {2, 31, 3, 1, 8},       {2, 32, 3, 1, 8},     {2, 63, 3, 1, 8},      {2, 64, 3, 1, 8}};

// The workspace of the heuristics' first plan; with less, cuDNN refuses it. The frontend adds the
// sums of dout * out and, where the order of sums is free, dQ in f32.
std::int64_t wanted_by_first(
    AttentionGraphKey key, const std::shared_ptr<const cudnn_frontend::DeviceProperties>& device) {
  const AttentionShape& s = key.shape;
  key.scratch_bytes = -1;  // even a plan without a workspace needs more
  std::int64_t bytes = 0;
  try {
    check_attention_graph(key, device);
    ADD_FAILURE() << "planned in less than nothing";
  } catch (const UsageError& error) {
    const std::string text = error.what(), word = "Requires ";
    const auto at = text.find(word);
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    if (at != std::string::npos) bytes = std::stoll(text.substr(at + word.size()));
  }
  if (!key.backward) return bytes;
  return bytes + s.sequences * s.num_keys() * s.query_heads * 4 *
                     (key.deterministic ? 1 : 1 + s.head_width);
}

// In both types and directions, with dropout and without, deterministic or not.
void expect_plans(const AttentionShape& shape, bool keys_apart,
                  const std::shared_ptr<const cudnn_frontend::DeviceProperties>& device) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ASSERT_EQ(device_common::attention_form(shape, dtype), device_common::AttentionForm::kCudnn);
    for (const bool deterministic : {true, false}) {
      for (const bool backward : {false, true}) {
        for (const float dropout : {0.0f, 0.1f}) {
          const AttentionGraphKey key{
              shape,         dtype,   backward,
              deterministic, dropout, device_common::cudnn_attention_bytes(shape, deterministic),
              keys_apart};
          EXPECT_NO_THROW(check_attention_graph(key, device)) << key.text();
          const std::int64_t wanted = wanted_by_first(key, device);
          EXPECT_LE(wanted, key.scratch_bytes) << key.text();
          if (dtype == DType::kBF16) fmt::print("{:>12} wanted: {}\n", wanted, key.text());
        }
      }
    }
  }
}

TEST(AttentionGraph, HasAPlanOnAnH100ThatFitsIntoTheReserve) {
  const auto device = h100();
  for (const AttentionShape& shape : kShapes) expect_plans(shape, false, device);
}

// Latent attention of DeepSeek-V2-Lite, Moonlight and DeepSeek-V3: heads of 192 with values of 128; and
// the widths of whole runs of the suite.
TEST(AttentionGraph, HasPlansForValuesNarrowerThanHeads) {
  const auto device = h100();
  for (const auto& [sequences, positions, heads, width, values] :
       {std::tuple{4, 4096, 16, 192, 128},
        {1, 4096, 128, 192, 128},
        {2, 4096, 16, 192, 192},
        {2, 65, 3, 24, 8},
        {2, 31, 4, 16, 8},
        {2, 65, 3, 24, 12}}) {
    AttentionShape shape{sequences, positions, heads, heads, width};
    shape.value_width = values;
    expect_plans(shape, false, device);
  }
}

// Pairs of halves of a ring: the queries' own keys, in rows of qkv, and keys of another rank, all of which are seen.
TEST(AttentionGraph, HasPlansForBlocksOfARing) {
  const auto device = h100();
  const std::vector<AttentionShape> shapes{{1, 32768, 32, 8, 128}, {2, 4096, 12, 12, 64},
                                           {1, 16384, 8, 1, 128},  {2, 600, 4, 2, 24},
                                           {2, 16, 3, 1, 8},       {4, 24, 4, 2, 8}};
  for (const AttentionShape& whole : shapes) {
    AttentionShape shape = whole;
    const std::int64_t half = whole.positions / 8 > 1 ? whole.positions / 8 : 2;
    shape.first_query = 2 * half;
    shape.queries = half;
    for (const bool own : {true, false}) {
      shape.block = {.first_key = own ? 2 * half : half, .keys = half, .rows = 2 * half};
      expect_plans(shape, !own, device);
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cuda
