// The same families with their keys and values kept: bit for bit what one pass gives.

#include <gtest/gtest.h>

#include "tests/engine/model/family_case.h"

namespace sherd::testing {
namespace {

// Logits of all tokens of the first sequence, in passes of `passes` tokens each; without a cache in one.
std::vector<float> logits_of(const Family& family, std::vector<std::int64_t> passes, bool cached) {
  model::ModelShape shape = family.shape();
  const auto inputs = tokens(shape, 1000);
  shape.sequences = 1;
  if (cached) shape.cached_positions = shape.seq_length;
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({});
  model::Transformer transformer(shape, memory, *stream);
  const Units parameters(shape, &family.weights());
  const auto head = model::head_parameters(shape, parameters.head(shape));
  if (!cached) passes = {shape.seq_length};
  std::vector<float> all;
  for (std::int64_t first = 0; const std::int64_t count : passes) {
    transformer.resize(1, count);
    const model::Pass pass{.inputs = {inputs.data() + first, DType::kI32, count},
                           .targets = {},
                           .first_position = first};
    transformer.embed(model::embedding_parameters(shape, parameters.first()), pass);
    for (std::int64_t i = 0; i < shape.num_layers; ++i) {
      transformer.block_forward(i, model::block_parameters(shape, i, parameters.block(i)), pass);
    }
    const Tensor logits = transformer.logits(head, 0, count);
    stream->synchronize();
    all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.numel);
    first += count;
  }
  return all;
}

class FamiliesWithCache : public ::testing::TestWithParam<std::string> {};

TEST_P(FamiliesWithCache, HaveTheSameLogitsWhenKeysAndValuesAreKept) {
  const Family family(GetParam());
  const std::vector<float> expected = logits_of(family, {}, false);
  const std::int64_t length = family.shape().seq_length;
  EXPECT_EQ(logits_of(family, std::vector<std::int64_t>(length, 1), true), expected);
  EXPECT_EQ(logits_of(family, {3, 1, length - 5, 1}, true), expected);
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesWithCache, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sherd::testing
