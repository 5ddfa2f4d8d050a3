#include "core/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/arena.h"

namespace sherd {
namespace {

TEST(CudaDevice, WhatIsMissingIsSaidInOneSentence) {
  EXPECT_EQ(cuda_problem(0, 0, 0), "this program was built without CUDA");
  EXPECT_EQ(cuda_problem(0, 13000, 0), "no NVIDIA driver was found on this machine");
  EXPECT_EQ(cuda_problem(13000, 13000, 0), "the NVIDIA driver shows no GPU to this process");
  EXPECT_EQ(cuda_problem(13000, 13000, 1), "");
}

TEST(CudaDevice, ADriverOfAnOlderMajorVersionIsTooOldAndOneOfAnOlderMinorVersionIsNot) {
  EXPECT_EQ(
      cuda_problem(12080, 13000, 1),
      "the NVIDIA driver runs CUDA up to 12.8, but this program was built with 13.0; install "
      "driver 580 or newer, or build it with a CUDA 12 toolkit (the same sources; not compiled so "
      "far)");
  EXPECT_EQ(cuda_problem(13000, 13010, 1), "");
  EXPECT_EQ(cuda_problem(14020, 13000, 1), "");
}

TEST(CudaDevice, ALibraryOfAnotherCudaIsNamedWithItsPlace) {
  LoadedLibrary library{"cuDNN", "9.1.0", 12040, "/opt/libcudnn.so.9"};
  EXPECT_EQ(
      library_problem(library, 13000),
      "this program was built with CUDA 13.0, but cuDNN 9.1.0 for CUDA 12.4 from "
      "/opt/libcudnn.so.9 was loaded; put the folder of CUDA 13's first into LD_LIBRARY_PATH");
  library.cuda = 13010;  // another minor version will do
  EXPECT_EQ(library_problem(library, 13000), "");
  library.cuda = 0;  // NCCL doesn't say
  EXPECT_EQ(library_problem(library, 13000), "");
  EXPECT_EQ(library.text(), "cuDNN 9.1.0 from /opt/libcudnn.so.9");
}

TEST(CudaDevice, AMachineWithoutAGpuRefusesARunOnOneAsAUsersMistake) {
  const CudaSystem system = cuda_system();
  if (system.problem.empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_TRUE(system.devices.empty());
  try {
    require_cuda_devices(1);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              "run.device is cuda, but " + system.problem + "; set run.device: cpu");
    EXPECT_EQ(error.exit_code(), 2);
  }
}

TEST(CudaDevice, AnArenaTakesWholePagesOfDeviceMemory) {
  EXPECT_EQ(cuda_arena_bytes(0), 2097152);
  EXPECT_EQ(cuda_arena_bytes(1), 2097152);
  EXPECT_EQ(cuda_arena_bytes(2097152), 2097152);
  EXPECT_EQ(cuda_arena_bytes(2097153), 4194304);
  EXPECT_EQ(cuda_arena_bytes(80'000'000'000), 38147 * std::int64_t{2097152});
}

// Stands for a GPU's memory: more than asked for, and it sees who zeroes what.
class OddMemory final : public ArenaMemory {
 public:
  explicit OddMemory(std::vector<std::pair<std::int64_t, std::int64_t>>& zeroed)
      : zeroed_(zeroed) {}
  char* data() const override { return const_cast<char*>(bytes_.data()); }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::int64_t resident_bytes() const override { return 0; }
  void zero(void* data, std::int64_t bytes) override {
    zeroed_.emplace_back(static_cast<char*>(data) - bytes_.data(), bytes);
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
  void allow(void*, std::int64_t) noexcept override {}
  void forbid(void*, std::int64_t) noexcept override {}

 private:
  std::vector<char> bytes_ = std::vector<char>(4096);
  std::vector<std::pair<std::int64_t, std::int64_t>>& zeroed_;
};

TEST(CudaDevice, AnArenaStandsInTheMemoryItIsGivenAndReportsWhatWasTaken) {
  const BufferSpec first{"first", Category::kParameters, DType::kF32, 100};
  const BufferSpec second{"second", Category::kOptimizer, DType::kF32, 10};
  MemoryPlan plan({first, second});
  std::vector<std::pair<std::int64_t, std::int64_t>> zeroed;
  auto memory = std::make_unique<OddMemory>(zeroed);
  char* base = memory->data();
  Arena arena(plan, std::move(memory));
  EXPECT_EQ(arena.taken_bytes(), 4096);
  {
    const Buffer buffer = arena.acquire(second);
    EXPECT_EQ(static_cast<char*>(buffer.tensor().data) - base, plan.buffers()[1].offset);
    EXPECT_TRUE(zeroed.empty());  // new memory is zero
  }
  const Buffer again = arena.acquire(second);
  ASSERT_EQ(zeroed.size(), 1u);
  EXPECT_EQ(zeroed[0], std::pair(plan.buffers()[1].offset, std::int64_t{40}));
}

}  // namespace
}  // namespace sherd
