// What kernels must not do, done; and that every other test of this program ends without any of it.
#include "tests/emulated_gpu/watch.h"

#include <gtest/gtest.h>

#include "core/arena.h"
#include "core/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/launches/operands.h"
#include "kernels/norm.h"
#include "tests/emulated_gpu/cuda_runtime_api.h"
#include "tests/emulated_gpu/races.h"

namespace emulated {
namespace {

class NoFaults : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    for (const std::string& fault : faults()) ADD_FAILURE() << fault;
    forget_faults();
    for (const std::string& race : take_races()) ADD_FAILURE() << race;
  }
};

const bool kListens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new NoFaults);
  return true;
}();

// The first fault of a kernel of two blocks of 64 threads, or "".
template <class Kernel>
std::string fault_of(const Kernel& kernel, const std::vector<Touched>& operands = {}) {
  static std::uint64_t number = 0;  // a form of its own: always watched
  run({"kernel", 1024, operands, {++number}}, {2}, {64}, kernel);
  const std::vector<std::string> found = faults();
  forget_faults();
  return found.empty() ? "" : found.front();
}

TEST(Watch, ThreadsOfABlockMeetBeforeOneReadsWhatAnotherHasWritten) {
  EXPECT_TRUE(kListens);
  __shared__ float shared[64];
  const auto exchange = [&](auto barrier) {
    return fault_of([&] {
      const unsigned t = threadIdx.x;
      shared[t] = 1.0f;
      barrier();
      volatile float other = shared[(t + 33) % 64];
      static_cast<void>(other);
    });
  };
  EXPECT_NE(exchange([] {}).find("and nothing orders them (shared memory)"), std::string::npos);
  EXPECT_EQ(exchange([] { __syncthreads(); }), "");
  EXPECT_NE(exchange([] { __syncwarp(); }), "") << "the other one is of another warp";
  // Who reads late is overtaken by who writes next.
  EXPECT_NE(fault_of([&] {
              for (int i = 0; i < 2; ++i) {
                shared[threadIdx.x] = 1.0f;
                __syncthreads();
                volatile float other = shared[63 - threadIdx.x];
                static_cast<void>(other);
              }
            }),
            "");
}

TEST(Watch, SumsAndMaximaOfABlockFollowOneAnother) {
  using namespace sherd::kernels::cuda;
  __shared__ float scratch[64];
  EXPECT_EQ(fault_of([&] {
              const auto t = static_cast<float>(threadIdx.x);
              volatile float last = block_sum(block_max(block_max(t, scratch), scratch), scratch);
              float a = last, b = t;
              block_sums(a, b, scratch);
              last = block_max(a + b, scratch);
            }),
            "");
}

TEST(Watch, ShufflesOrderNothingAndWarpBarriersTheirWarp) {
  __shared__ float shared[64];
  const auto exchange = [&](auto barrier) {
    return fault_of([&] {
      shared[threadIdx.x] = 1.0f;
      barrier();
      volatile float other = shared[threadIdx.x ^ 1u];
      static_cast<void>(other);
    });
  };
  EXPECT_EQ(exchange([] { __syncwarp(); }), "");
  EXPECT_NE(exchange([] { __shfl_xor_sync(0xffffffffu, 1.0f, 1); }), "");
}

TEST(Watch, BlocksNeverMeet) {
  const auto piece = sherd::pinned_arena_memory(256);
  auto* memory = reinterpret_cast<std::uint16_t*>(piece->data());
  const auto write = [=](bool apart) {
    return fault_of([=] {
      if (threadIdx.x == 0) memory[apart ? blockIdx.x : 0] = 1;  // halves of one word are apart
      __syncthreads();
    });
  };
  EXPECT_NE(write(false).find("writes what"), std::string::npos);
  EXPECT_EQ(write(true), "");
  auto* lowest = reinterpret_cast<long long*>(piece->data() + 128);
  EXPECT_EQ(fault_of([=] { atomicMin(lowest, static_cast<long long>(threadIdx.x)); }), "");
}

TEST(Watch, WhatAThreadReadsBackItHasStillWritten) {
  const auto piece = sherd::pinned_arena_memory(256);
  auto* memory = reinterpret_cast<float*>(piece->data());
  EXPECT_NE(fault_of([=] {
              if (blockIdx.x == 0 && threadIdx.x == 0) memory[0] = 1.0f;
              __syncthreads();
              if (threadIdx.x == 0) {
                volatile float own = memory[0];
                static_cast<void>(own);
              }
            }),
            "");
}

TEST(Watch, SharedMemoryEndsWithWhatTheLaunchAskedFor) {
  const auto read = [](std::size_t i) {
    return fault_of([=] {
      volatile float x = reinterpret_cast<float*>(emulated::shared_memory)[i];
      static_cast<void>(x);
    });
  };
  EXPECT_EQ(read(255), "");
  EXPECT_NE(read(256).find("reads shared memory beyond the launch's 1024 bytes"),
            std::string::npos);
}

TEST(Watch, AKernelTouchesItsOperandsAsTheyAreMeant) {
  const auto piece = sherd::pinned_arena_memory(1024);
  if (!has_fake_machine()) GTEST_SKIP() << "needs the fake machine, which knows its memory";
  const char* begin = piece->data();
  auto* memory = reinterpret_cast<float*>(piece->data());
  const Touched first{begin, begin + 512, true}, second{begin + 512, begin + 1024, false};
  const auto copy = [&](std::size_t from, std::size_t to) {
    return fault_of(
        [=] {
          const unsigned i = blockIdx.x * 64 + threadIdx.x;
          memory[to + i] = memory[from + i];
        },
        {first, second});
  };
  EXPECT_EQ(copy(128, 0), "");
  EXPECT_EQ(copy(0, 128), "kernel: writes 512 bytes that no writable operand has");
  EXPECT_EQ(copy(129, 0), "kernel: reads 4 bytes that no operand has");
}

TEST(Watch, FrontsNameWhatTheyWereGiven) {
  float x = 0, y = 0, w = 0;
  sherd::kernels::NormForward args;
  args.residual = {&x, sherd::DType::kF32, 1};
  args.weight = {&w, sherd::DType::kF32, 1};
  args.y = {&y, sherd::DType::kF32, 1};
  EXPECT_TRUE(operands_of_call().empty());
  {
    const sherd::kernels::CallWithOperands call(args);
    std::vector<const void*> read, written;
    for (const Touched& operand : operands_of_call()) {
      (operand.write ? written : read).push_back(operand.begin);
      EXPECT_EQ(operand.end - operand.begin, 4);
    }
    EXPECT_EQ(read, (std::vector<const void*>{&x, &w}));
    EXPECT_EQ(written, std::vector<const void*>{&y});
    const sherd::kernels::CallWithOperands inner(args.y, 1.0f);
    EXPECT_EQ(operands_of_call().size(), 1u);
  }
  EXPECT_TRUE(operands_of_call().empty());
}

}  // namespace
}  // namespace emulated
