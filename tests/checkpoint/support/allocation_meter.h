/// The largest single allocation by `new` in this process while a meter is alive. The counting
/// operators are in allocation_meter_test.cpp.
#pragma once

#include <atomic>
#include <cstddef>

namespace sherd::test {

extern std::atomic<std::size_t> largest_allocation;

class AllocationMeter {
 public:
  AllocationMeter() { largest_allocation = 0; }
  std::size_t largest() const { return largest_allocation; }
};

}  // namespace sherd::test
