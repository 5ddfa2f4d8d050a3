// Where ranks run: what a recipe means on a machine with or without GPUs, and what that changes in
// its plan.

#include "engine/launch/device.h"

#include "core/cuda_device.h"
#include "engine/run/run.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

std::int64_t bytes_of(const MemoryPlan& plan, Category category) {
  return plan.peak_by_category()[static_cast<int>(category)];
}

// The sum of losses, say, is on both sides; a ring of checkpoints on the host's alone.
TEST(GpuPlan, PutsStagingIntoHostMemoryAndGivesWhatBothSidesTouchATwin) {
  const Strings sets = {"checkpoint.interval=10", "training.micro_batch_size=1"};
  Strings on_gpu = sets;
  on_gpu.push_back("run.device=cuda");
  const WorldPlan cpu = plan_world(resolved(kSmallRecipe, sets).values);
  const WorldPlan gpu = plan_world(resolved(kSmallRecipe, on_gpu).values);
  EXPECT_GT(bytes_of(cpu.worst(), Category::kCheckpoint), 0);
  EXPECT_EQ(cpu.host_of(0).arena_bytes(), 0);
  EXPECT_EQ(bytes_of(gpu.worst(), Category::kCheckpoint), 0);
  EXPECT_EQ(bytes_of(gpu.host_of(0), Category::kCheckpoint),
            bytes_of(cpu.worst(), Category::kCheckpoint));
  std::int64_t twins = 0;
  for (const PlannedBuffer& buffer : gpu.worst().buffers()) {
    if (buffer.spec.home == Home::kMirrored) twins += sharding::twin_of(buffer.spec).bytes();
  }
  EXPECT_GT(twins, 0);
  EXPECT_EQ(gpu.host_of(0).live_bytes(kInit), twins + bytes_of(cpu.worst(), Category::kCheckpoint));
  for (const Category same : {Category::kParameters, Category::kGradients, Category::kOptimizer,
                              Category::kActivations, Category::kData}) {
    EXPECT_EQ(bytes_of(gpu.worst(), same), bytes_of(cpu.worst(), same)) << name_of(same);
  }
}

TEST(GpuPlan, AsksForTheSizeOfAGpuThatIsNotHere) {
  if (cuda_system().problem.empty()) GTEST_SKIP() << "this machine has a GPU";
  const ResolvedRecipe recipe = resolved(kSmallRecipe, {"run.device=cuda"});
  EXPECT_EQ(usage_error_of([&] { device_limit(recipe.values); }),
            "run.device is cuda, but " + cuda_system().problem +
                ", so a GPU's memory is unknown: add --device-memory 80GB, or "
                "memory.device_memory in the recipe.");
  EXPECT_EQ(device_limit(recipe.values, 1000).bytes, 1000);
}

TEST(Device, AutoIsTheProcessorWhereThereIsNoGpuAndCudaIsAnError) {
  if (cuda_system().problem.empty()) GTEST_SKIP() << "this machine has a GPU";
  const ResolvedRecipe whatever = resolved(kSmallRecipe);
  EXPECT_EQ(device_traits(whatever.values).kind, DeviceKind::kCpu);
  EXPECT_FALSE(choose_machine(whatever.values)->traits().separate_memory);
  const ResolvedRecipe cuda = resolved(kSmallRecipe, {"run.device=cuda"});
  EXPECT_EQ(device_traits(cuda.values).kind, DeviceKind::kCuda);
  EXPECT_EQ(usage_error_of([&] { train(cuda); }),
            "run.device is cuda, but " + cuda_system().problem + "; set run.device: cpu");
}

// Datasheets: H200 and H100 SXM 1,979 Tflop/s with sparsity in bf16, half of it dense.
TEST(Device, KnowsTheDensePeaksOfTheGpusItIsMeantFor) {
  EXPECT_EQ(dense_peak("NVIDIA H200", DType::kBF16, false), 989e12);
  EXPECT_EQ(dense_peak("NVIDIA H100 80GB HBM3", DType::kF16, false), 989e12);
  EXPECT_EQ(dense_peak("NVIDIA H100 PCIe", DType::kBF16, false), 756e12);
  EXPECT_EQ(dense_peak("NVIDIA A100-SXM4-80GB", DType::kBF16, false), 312e12);
  EXPECT_EQ(dense_peak("NVIDIA A100-SXM4-80GB", DType::kF32, true), 156e12);
  EXPECT_EQ(dense_peak("NVIDIA H200", DType::kF32, false), 67e12);
  EXPECT_EQ(dense_peak("some other GPU", DType::kBF16, false), 0.0);
}

TEST(Device, TheReserveForLibrariesHoldsTwoCommunicatorsWhereThereAreSome) {
  constexpr std::int64_t kMiB = 1 << 20;
  EXPECT_EQ(library_reserve_bytes(1, false), 1024 * kMiB);
  EXPECT_EQ(library_reserve_bytes(4, true), 1024 * kMiB);  // no NCCL: they read each other's memory
  EXPECT_EQ(library_reserve_bytes(2, false), (1024 + 2 * 320) * kMiB);
  EXPECT_EQ(library_reserve_bytes(8, false), (1024 + 2 * 704) * kMiB);
  EXPECT_EQ(library_reserve_bytes(64, false), library_reserve_bytes(8, false));
  EXPECT_EQ(library_reserve_bytes(2, false, {2, 2, 2, 2, 2}),
            (1024 + 7 * 320) * kMiB);  // a pipeline's messages
  EXPECT_EQ(library_reserve_bytes(4, false, {4, 2}),
            (1024 + 3 * 448 + 320) * kMiB);  // tensor ranks' sums
}

TEST(Device, RanksHaveAGpuEachUnlessTheyAreToShare) {
  EXPECT_EQ(device_of_rank(3, 4, 4, false), 3);
  EXPECT_EQ(device_of_rank(3, 4, 2, true), 0);
  EXPECT_EQ(usage_error_of([] { device_of_rank(0, 4, 2, false); }),
            "4 ranks need a GPU each, but this machine shows 2; use fewer ranks, or --share-device "
            "to put several ranks on one GPU");
}

}  // namespace
}  // namespace sherd::engine
