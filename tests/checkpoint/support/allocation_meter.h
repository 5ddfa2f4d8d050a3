/// What `new` has given out in this process since a meter was made: the largest single allocation,
/// and the most that was held at once beyond what was held before. Memory with an alignment of its
/// own isn't counted. The counting operators are in allocation_meter_test.cpp.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sherd::test {

extern std::atomic<std::size_t> largest_allocation;
extern std::atomic<std::int64_t> allocated_bytes, most_allocated_bytes;

class AllocationMeter {
 public:
  AllocationMeter() : before_(allocated_bytes) {
    largest_allocation = 0;
    most_allocated_bytes = before_;
  }
  std::size_t largest() const { return largest_allocation; }
  std::int64_t most_held() const { return most_allocated_bytes - before_; }

 private:
  std::int64_t before_;
};

}  // namespace sherd::test
