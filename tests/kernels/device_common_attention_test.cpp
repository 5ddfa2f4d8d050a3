// Attention on a GPU, as far as it is decided on the host: which form, how much scratch, where rows
// lie, which block does what.
#include <gtest/gtest.h>

#include <set>

#include "kernels/device_common/attention.h"
#include "kernels/device_common/matmul_key.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels::device_common {
namespace {

const AttentionShape kShape{3, 70, 6, 2, 8};

TEST(AttentionForm, CudnnGetsWhatItTakesAndWeDoTheRest) {
  const auto form = [](std::int64_t positions, std::int64_t width, DType dtype) {
    return attention_form({2, positions, 4, 2, width}, dtype);
  };
  EXPECT_EQ(form(1024, 64, DType::kBF16), AttentionForm::kCudnn);
  EXPECT_EQ(form(1000, 128, DType::kF16), AttentionForm::kCudnn);
  EXPECT_EQ(form(1024, 64, DType::kF32), AttentionForm::kOwn);
  EXPECT_EQ(form(1024, 60, DType::kBF16), AttentionForm::kOwn);
  EXPECT_EQ(form(1024, 264, DType::kBF16), AttentionForm::kOwn);
  EXPECT_EQ(form(1, 64, DType::kBF16), AttentionForm::kOwn);
}

TEST(AttentionScratch, HasRoomForWhatCudnnsGraphsKeep) {
  // What sdpa_backward of cudnn_frontend 1.32 asks for on Hopper, written out: dP in 16 bits with
  // positions padded to tiles of 64 and 128, or dQ in f32; sums of dout * out.
  const AttentionShape gpt2{16, 1000, 12, 12, 64};
  const ComputeDevice fixed{DeviceKind::kCuda, 1, true}, free{DeviceKind::kCuda, 1, false};
  EXPECT_GE(kernels::attention_workspace_bytes(gpt2, DType::kBF16, fixed),
            16 * 12 * (1024 * 1024 * 2 + 1000 * 4));
  EXPECT_GE(kernels::attention_workspace_bytes(gpt2, DType::kBF16, free),
            16 * 12 * (1000 * 64 * 4 + 1000 * 4));
  // Without a fixed order of sums it doesn't grow with the square of the positions.
  const AttentionShape twice{16, 2000, 12, 12, 64};
  EXPECT_LE(kernels::attention_workspace_bytes(twice, DType::kBF16, free),
            2 * kernels::attention_workspace_bytes(gpt2, DType::kBF16, free));
  // Heads that share keys keep their gradients apart until they are added.
  const AttentionShape grouped{16, 1000, 12, 4, 64};
  EXPECT_GE(
      kernels::attention_workspace_bytes(grouped, DType::kBF16, free),
      kernels::attention_workspace_bytes(gpt2, DType::kBF16, free) + 16 * 12 * 1000 * 64 * 2 * 2);
}

TEST(AttentionScratch, OursIsOneNumberForEveryQuery) {
  const ComputeDevice gpu{DeviceKind::kCuda, 1, true};
  EXPECT_EQ(kernels::attention_workspace_bytes(kShape, DType::kF32, gpu), 3 * 70 * 6 * 4);
}

TEST(AttentionLayout, RowsLieWhereThePackedShapesSay) {
  const AttentionLayout at(kShape);
  for (const std::int64_t b : {0, 2}) {
    for (const std::int64_t s : {0, 69}) {
      const std::int64_t token = b * 70 + s;
      EXPECT_EQ(at.query(b, 5) + s * at.packed_row(), (token * 10 + 5) * 8);
      EXPECT_EQ(at.key(b, 1) + s * at.packed_row(), (token * 10 + 6 + 1) * 8);
      EXPECT_EQ(at.value(b, 1) + s * at.packed_row(), (token * 10 + 8 + 1) * 8);
      EXPECT_EQ(at.out(b, 5) + s * at.out_row(), (token * 6 + 5) * 8);
      EXPECT_EQ(at.statistic(b, 5) + s, (b * 6 + 5) * 70 + s);
      EXPECT_EQ(at.element(b, 5, s, 3), ((b * 6 + 5) * 70 + s) * 70 + 3);
    }
  }
  EXPECT_EQ(at.group_of(2), 0);
  EXPECT_EQ(at.group_of(3), 1);
}

TEST(AttentionLayout, EveryTileOfEveryHeadIsOneBlocksAndTheLongestComeFirst) {
  const AttentionLayout at(kShape);
  const auto check = [&](std::int64_t heads, std::int64_t tasks, auto task_of, auto work_of) {
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
    std::int64_t last = 3;
    for (std::int64_t block = 0; block < tasks; ++block) {
      const AttentionTask task = task_of(block);
      EXPECT_TRUE(task.b >= 0 && task.b < 3 && task.head >= 0 && task.head < heads);
      EXPECT_TRUE(task.tile >= 0 && task.tile < 3);
      EXPECT_TRUE(seen.insert({task.b, task.head, task.tile}).second);
      EXPECT_LE(work_of(task.tile), last);
      last = work_of(task.tile);
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), 3 * heads * 3);
  };
  // A tile of queries sees the keys before it, a tile of keys is seen by the queries after it.
  check(
      6, at.num_query_tasks(), [&](std::int64_t i) { return at.query_task(i); },
      [](std::int64_t tile) { return tile + 1; });
  check(
      2, at.num_key_tasks(), [&](std::int64_t i) { return at.key_task(i); },
      [](std::int64_t tile) { return 3 - tile; });
}

// Of rows 20 to 52 of each sequence, and of heads 6 to 12 of 18.
TEST(AttentionLayout, APartOfTheQueriesHasItsKeysApartAndPlacesAmongAllHeads) {
  AttentionShape shape = kShape;
  shape.first_query = 20;
  shape.queries = 33;
  shape.first_query_head = 6;
  shape.all_query_heads = 18;
  const AttentionLayout at(shape);
  EXPECT_EQ(at.num_query_tasks(), 3 * 6 * 2);
  EXPECT_EQ(at.num_key_tasks(), 3 * 2 * 3);
  EXPECT_EQ(at.query_task(0).tile, 1);
  EXPECT_EQ(at.query(2, 5) + at.packed_row(), ((2 * 33 + 1) * 10 + 5) * 8);
  EXPECT_EQ(at.out(2, 5) + at.out_row(), ((2 * 33 + 1) * 6 + 5) * 8);
  EXPECT_EQ(at.statistic(2, 5), (2 * 6 + 5) * 33);
  EXPECT_EQ(at.key(2, 1) + at.key_row(), ((2 * 70 + 1) * 4 + 1) * 8);
  EXPECT_EQ(at.value(2, 1) + at.key_row(), ((2 * 70 + 1) * 4 + 2 + 1) * 8);
  EXPECT_EQ(at.wide_key(2, 1), (2 * 70 * 4 + 1) * 8);
  EXPECT_EQ(at.element(2, 5, 21, 3), ((2 * 18 + 6 + 5) * 70 + 21) * 70 + 3);
}

TEST(AttentionDropout, CudnnsSeedFollowsSeedStepSiteRowAndHeadAndNothingElse) {
  const Dropout dropout{0.1f, {7, 3, 2}, 4096};
  const auto cudnn_dropout_seed = [](const Dropout& of, std::int64_t first_head = 0) {
    AttentionShape shape = kShape;
    shape.first_query_head = first_head;
    return device_common::cudnn_dropout_seed(shape, of);
  };
  std::set<std::int64_t> seeds{cudnn_dropout_seed(dropout)};
  EXPECT_GE(*seeds.begin(), 0);
  Dropout other = dropout;
  other.probability = 0.2f;
  EXPECT_EQ(cudnn_dropout_seed(other), *seeds.begin());
  for (int label = 0; label < 4; ++label) {
    other = dropout;
    if (label == 0) other.address.seed += 1;
    if (label == 1) other.address.step += 1;
    if (label == 2) other.address.site += 1;
    if (label == 3) other.first_element += 4096;
    EXPECT_TRUE(seeds.insert(cudnn_dropout_seed(other)).second) << label;
  }
  EXPECT_TRUE(seeds.insert(cudnn_dropout_seed(dropout, 6)).second) << "other heads";
}

TEST(MatmulKey, GeluIsTakenAlongIn16BitsWhereItsInputsRowsAreWholePacks) {
  EXPECT_TRUE(fuses_gelu(3072, DType::kBF16, 16));
  EXPECT_TRUE(fuses_gelu(8, DType::kF16, 16));
  EXPECT_FALSE(fuses_gelu(3072, DType::kF32, 16));
  EXPECT_FALSE(fuses_gelu(3076, DType::kBF16, 16));
  EXPECT_FALSE(fuses_gelu(3072, DType::kBF16, 2));
}

TEST(MatmulKey, ScratchOnAGpuIsWhatCublasIsOfferedOrTheSumsOfABias) {
  const ComputeDevice gpu{DeviceKind::kCuda};
  EXPECT_EQ(linear_workspace_bytes({1, 1, 1}, DType::kF32, DType::kF32, gpu), 32 << 20);
  EXPECT_EQ(linear_workspace_bytes({65, 1, 8388608}, DType::kBF16, DType::kF32, gpu),
            std::int64_t{2} * 8388608 * 4);
}

}  // namespace
}  // namespace sherd::kernels::device_common
