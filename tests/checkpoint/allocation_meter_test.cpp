// This program's operator new, which notes the largest size asked of it and how much is held.
#include "tests/checkpoint/support/allocation_meter.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <new>
#include <string>

namespace sherd::test {
std::atomic<std::size_t> largest_allocation = 0;
std::atomic<std::int64_t> allocated_bytes = 0, most_allocated_bytes = 0;

namespace {

template <class T>
void raise(std::atomic<T>& most, T value) {
  T known = most;
  while (value > known && !most.compare_exchange_weak(known, value)) {
  }
}

void note(void* memory, int sign) {
  const auto bytes = static_cast<std::int64_t>(::malloc_usable_size(memory));
  const std::int64_t held = allocated_bytes += sign * bytes;
  raise(most_allocated_bytes, held);
}

}  // namespace
}  // namespace sherd::test

// Not inlined: g++ would see malloc paired with delete, and new with free.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  sherd::test::raise(sherd::test::largest_allocation, bytes);
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  sherd::test::note(memory, 1);
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return operator new(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory) sherd::test::note(memory, -1);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
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

TEST(AllocationMeter, SeesHowMuchIsHeldAtOnce) {
  const AllocationMeter meter;
  for (int i = 0; i < 10; ++i) const std::string text(123'456, 'x');
  EXPECT_GE(meter.most_held(), 123'456);
  EXPECT_LT(meter.most_held(), 200'000);
  const std::string one(123'456, 'x'), another(123'456, 'y');
  EXPECT_GE(meter.most_held(), 2 * 123'456);
  EXPECT_LT(meter.most_held(), 300'000);
}

}  // namespace
}  // namespace sherd::test
