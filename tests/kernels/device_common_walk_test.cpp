// Launch shapes and index arithmetic of the GPU kernels, walked on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/device_common/matmul_key.h"
#include "kernels/device_common/norm_blocks.h"
#include "kernels/device_common/token.h"
#include "kernels/device_common/update.h"
#include "kernels/norm.h"
#include "tests/support/devices/body_walk.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels::device_common {
namespace {

/// Counts how often each element is done, and in which packs.
struct Tally {
  int* count;
  int* packs;
  template <int N>
  void apply(std::int64_t first) const {
    for (int i = 0; i < N; ++i) ++count[first + i];
    if (N > 1) packs[0] += first % N == 0 ? 1 : -1000000;
  }
};

TEST(BodyWalk, EveryElementOfAFlatBufferIsDoneOnceAndAlmostAllInAlignedPacks) {
  for (const std::int64_t numel : {1, 3, 4, 7, 8, 9, 255, 256, 2047, 2048, 2049, 100003}) {
    std::vector<int> count(static_cast<std::size_t>(numel));
    int packs = 0;
    test::run_flat<8>(numel, Tally{count.data(), &packs});
    EXPECT_EQ(std::count(count.begin(), count.end(), 1), numel) << numel;
    EXPECT_EQ(packs, numel / 8) << numel;
  }
}

TEST(BodyWalk, AGridNeverExceedsItsLimitAndAThreadThenTakesSeveralPacks) {
  EXPECT_EQ(flat_blocks(0, 8), 1);
  EXPECT_EQ(flat_blocks(8 * 256, 8), 1);
  EXPECT_EQ(flat_blocks(8 * 256 + 8, 8), 2);
  EXPECT_EQ(flat_blocks(std::int64_t{1} << 40, 8), 8192);
}

TEST(BodyWalk, ARowsBlockHasWholeWarpsAndAtMost512Threads) {
  EXPECT_EQ(row_threads(1), 32);
  EXPECT_EQ(row_threads(33), 64);
  EXPECT_EQ(row_threads(96), 96);
  EXPECT_EQ(row_threads(100000), 512);
}

struct SegmentTally {
  int* count;
  int* segment_of;
  template <int N>
  void apply(const Segment& segment, std::int64_t first) const {
    for (int i = 0; i < N; ++i) {
      ++count[first + i];
      segment_of[first + i] = static_cast<int>(segment.parameter);
    }
  }
};

TEST(BodyWalk, EverySegmentsElementsAreDoneOnceWithTheirOwnSegmentAndPaddingNever) {
  const std::vector<UpdateSegment> segments = {{0, 5, 0.0f, 7, 0},
                                               {64, 8192, 0.1f, 8, 10},
                                               {8256, 0, 0.0f, 9, 0},
                                               {8320, 20001, 0.0f, 10, 3}};
  const SegmentTable table = make_segment_table(segments, {});
  EXPECT_EQ(table.num_blocks(), 1 + 1 + 0 + 3);
  const std::int64_t numel = 28400;
  std::vector<int> count(numel), segment_of(numel, -1);
  for (std::int64_t block = 0; block < table.num_blocks(); ++block) {
    for (int thread = 0; thread < kThreads; ++thread) {
      walk_segments<8>(table, block, thread, kThreads,
                       SegmentTally{count.data(), segment_of.data()});
    }
  }
  for (std::int64_t i = 0; i < numel; ++i) {
    int expected = -1;
    for (const UpdateSegment& segment : segments) {
      if (i >= segment.first && i < segment.first + segment.count) {
        expected = static_cast<int>(segment.parameter);
      }
    }
    ASSERT_EQ(segment_of[i], expected) << i;
    ASSERT_EQ(count[i], expected < 0 ? 0 : 1) << i;
  }
}

TEST(BodyWalk, ALaunchOfSegmentsFitsIntoTheOldestLimitOnArgumentsOfAKernel) {
  EXPECT_LE(sizeof(SegmentTable) + sizeof(Adam<Float16, BFloat16>), 4096u);
}

TEST(BodyWalk, PositionsAreOrderedAsAStableSortOrdersThem) {
  const std::vector<std::int32_t> tokens = test::random_tokens(3000, 17, 5);
  std::vector<std::int32_t> expected(tokens.size()), order(tokens.size(), -1);
  for (std::size_t t = 0; t < tokens.size(); ++t) expected[t] = static_cast<std::int32_t>(t);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](std::int32_t a, std::int32_t b) { return tokens[a] < tokens[b]; });
  constexpr int kTile = 1024;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::int32_t place = 0;
    for (std::size_t first = 0; first < tokens.size(); first += kTile) {
      const int count = static_cast<int>(std::min<std::size_t>(kTile, tokens.size() - first));
      for (int sharer = 0; sharer < 8; ++sharer) {
        place += count_before<8>(tokens[t], static_cast<std::int64_t>(t), tokens.data() + first,
                                 static_cast<std::int64_t>(first), count, sharer);
      }
    }
    order[place] = static_cast<std::int32_t>(t);
  }
  EXPECT_EQ(order, expected);
}

TEST(BodyWalk, RowBlocksCoverAllRowsOnceAndFitTheWorkspace) {
  const ComputeDevice gpu{.kind = DeviceKind::kCuda};
  for (const std::int64_t width : {1, 24, 768, 4096, 20000}) {
    for (const std::int64_t tokens : {1, 3, 4, 5, 511, 4095, 4096, 4097, 12288, 100001}) {
      const RowBlocks blocks(tokens, width);
      std::int64_t next = 0;
      for (std::int64_t block = 0; block < blocks.count(); ++block) {
        EXPECT_EQ(blocks.begin(block), next);
        EXPECT_GT(blocks.end(block), next);
        next = blocks.end(block);
      }
      EXPECT_EQ(next, tokens);
      const std::int64_t planned =
          norm_backward_workspace_bytes({.tokens = tokens, .width = width}, gpu);
      EXPECT_GE(planned, blocks.count() * 2 * width * 4);
    }
  }
}

// What a column-major product with a key's shape and transposes computes, from row-major tensors.
test::Values multiply(const MatmulKey& key, const test::Values& a, const test::Values& b) {
  test::Values d(static_cast<std::size_t>(key.m * key.n));
  for (std::int64_t i = 0; i < key.m; ++i) {
    for (std::int64_t j = 0; j < key.n; ++j) {
      double sum = 0.0;
      for (std::int64_t l = 0; l < key.k; ++l) {
        sum += a[key.transpose_a ? i * key.lda() + l : l * key.lda() + i] *
               b[key.transpose_b ? l * key.ldb() + j : j * key.ldb() + l];
      }
      d[j * key.m + i] = sum;
    }
  }
  return d;
}

TEST(BodyWalk, TheThreeProductsOfALinearLayerAreDescribedToCublasAsTheEquationsSay) {
  const LinearShape shape{.tokens = 3, .inputs = 4, .outputs = 5};
  const test::Values x = test::random_values(12, 1), w = test::random_values(20, 2);
  const test::Values dy = test::random_values(15, 3);
  test::Values y(15), dx(12), dw(20);
  for (int t = 0; t < 3; ++t) {
    for (int o = 0; o < 5; ++o) {
      for (int i = 0; i < 4; ++i) {
        y[t * 5 + o] += x[t * 4 + i] * w[o * 4 + i];
        dx[t * 4 + i] += dy[t * 5 + o] * w[o * 4 + i];
        dw[o * 4 + i] += dy[t * 5 + o] * x[t * 4 + i];
      }
    }
  }
  const test::Tolerance exact{.absolute = 1e-12};
  EXPECT_TRUE(test::close(multiply(forward_matmul(shape), w, x), y, exact));
  EXPECT_TRUE(test::close(multiply(backward_input_matmul(shape), w, dy), dx, exact));
  EXPECT_TRUE(test::close(multiply(backward_weight_matmul(shape), x, dy), dw, exact));
}

TEST(BodyWalk, AProductsKeyKnowsAlignmentOnlyByItsClass) {
  alignas(256) static float memory[128];
  EXPECT_EQ(alignment_class(DType::kF32, memory, memory + 4, memory + 64), 16);
  EXPECT_EQ(alignment_class(DType::kF32, memory, memory + 1), 4);
  EXPECT_EQ(alignment_class(DType::kBF16, memory, memory + 2), 2);
  const auto* none = static_cast<const float*>(nullptr);
  EXPECT_EQ(alignment_class(DType::kBF16, memory, none), 16);
}

}  // namespace
}  // namespace sherd::kernels::device_common
