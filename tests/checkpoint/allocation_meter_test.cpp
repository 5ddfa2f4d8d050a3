// This program's operator new, which notes the largest size asked of it.
#include "tests/checkpoint/support/allocation_meter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

namespace sherd::test {
std::atomic<std::size_t> largest_allocation = 0;
}

// Not inlined: g++ would see malloc beside delete, and new beside free.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  std::size_t largest = sherd::test::largest_allocation;
  while (bytes > largest &&
         !sherd::test::largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace sherd::test {
namespace {

TEST(AllocationMeter, SeesTheLargestAllocation) {
  const AllocationMeter meter;
  EXPECT_LT(meter.largest(), 1000u);
  const std::string text(123'456, 'x');
  EXPECT_GE(meter.largest(), 123'456u);
  EXPECT_LT(meter.largest(), 130'000u);
}

}  // namespace
}  // namespace sherd::test
