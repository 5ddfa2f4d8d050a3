#include "checkpoint/format/shard_layout.h"

#include <gtest/gtest.h>

#include <array>

namespace sherd::checkpoint {
namespace {

TEST(ShardLayout, PiecesStandByTensorAndFirstElementInWhateverOrderTheyCome) {
  std::array<float, 12> memory{};
  const auto piece = [&](int tensor, std::int64_t first, std::int64_t count) {
    float* data = memory.data() + 8 * tensor + first;
    return sharding::StatePiece{tensor, first, count, {data, DType::kF32, count}};
  };
  const sharding::State state{
      .tensors = {{"a", "param", {8}}, {"b", "param", {4}}},
      .pieces = {piece(1, 2, 2), piece(0, 5, 3), piece(1, 0, 2), piece(0, 0, 2), piece(0, 2, 3)}};
  const ShardLayout layout = lay_out_shard(state);
  const std::vector<const float*> expected = {&memory[0], &memory[2], &memory[5], &memory[8],
                                              &memory[10]};
  ASSERT_EQ(layout.sources.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(layout.sources[i].data, expected[i]) << "piece " << i;
  }
}

}  // namespace
}  // namespace sherd::checkpoint
