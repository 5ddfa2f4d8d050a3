// libhdf5 in a process that gets no more memory at some point.
#include "checkpoint/format/hdf5_memory_driver.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <new>

#include "checkpoint/format/hdf5_skeleton.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

// The sanitizers map more than any limit allows.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

constexpr int kWritten = 0, kNoMemory = 5;

/// The address space of this process ends so far above what it has.
void allow_more(std::int64_t bytes) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + bytes);
  const rlimit limit{most, most};
  SHERD_CHECK(::setrlimit(RLIMIT_AS, &limit) == 0);
}

[[noreturn]] void lay_out_a_shard_with(std::int64_t bytes) {
  const std::vector<sharding::StateTensor> tensors = {{"w", "param", {100, 30}, DType::kF32}};
  ShardInfo shard;
  shard.datasets = {{"param", DType::kF32, 3000, 0, {}}};
  shard.pieces = {{0, 0, 3000, 0}};
  const ShardLabel label = {"0123456789abcdef0123456789abcdef", 1, 0, 1};
  allow_more(bytes);
  try {
    start_hdf5();
    build_hdf5_skeleton(label, shard, tensors);
    std::_Exit(kWritten);
  } catch (const std::bad_alloc&) {
    std::_Exit(kNoMemory);
  }
}

// Each limit in a process that hasn't called libhdf5 before: most of what it takes, it takes at first.
TEST(Hdf5Memory, HoweverLittleThereIsLibhdf5IsCalledWithEnoughOrNotAtAll) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends_well = [](int status) {
    return WIFEXITED(status) &&
           (WEXITSTATUS(status) == kWritten || WEXITSTATUS(status) == kNoMemory);
  };
  for (std::int64_t bytes = 0; bytes < (12 << 20); bytes += 384 << 10) {
    EXPECT_EXIT(lay_out_a_shard_with(bytes), ends_well, "") << bytes;
  }
  EXPECT_EXIT(lay_out_a_shard_with(0), testing::ExitedWithCode(kNoMemory), "");
  EXPECT_EXIT(lay_out_a_shard_with(64 << 20), testing::ExitedWithCode(kWritten), "");
}

#endif

// As after a call that failed for want of memory: libhdf5 still has the file, whose pages are gone.
[[noreturn]] void leave_a_file_open() {
  constexpr std::size_t kBytes = 4096;
  static_assert(sizeof(MemoryFile) <= kBytes);
  start_hdf5();
  void* place = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SHERD_CHECK(place != MAP_FAILED);
  const std::int64_t access = memory_access_list(*new (place) MemoryFile);
  hdf5_checked(H5Fcreate("left", H5F_ACC_TRUNC, H5P_DEFAULT, access), "H5Fcreate");
  ::munmap(place, kBytes);  // touching it now crashes
  std::exit(0);
}

TEST(Hdf5Memory, WhatAFailedCallLeavesBehindIsNotTouchedAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(leave_a_file_open(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::checkpoint
