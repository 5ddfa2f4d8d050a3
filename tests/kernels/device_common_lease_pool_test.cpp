#include "kernels/device_common/lease_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <set>
#include <thread>

namespace sherd::kernels::device_common {
namespace {

struct Item {
  int plans = 0;
};

TEST(LeasePool, RunsThatComeAndGoMakeAsManyAsWereNeededAtOnceAndFindWhatWasPutIn) {
  LeasePool<Item> pool;
  std::atomic<int> made = 0, planned = 0;
  for (int run = 0; run < 5; ++run) {
    std::latch all_here(3);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&] {
        const auto lease = pool.lease([&] {
          ++made;
          return std::make_unique<Item>();
        });
        all_here.arrive_and_wait();
        if (lease->plans == 0) {
          lease->plans = 1;
          ++planned;
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  EXPECT_EQ(made, 3);
  EXPECT_EQ(planned, 3);
}

TEST(LeasePool, NobodyElseHasWhatIsLeased) {
  LeasePool<Item> pool;
  const auto make = [] { return std::make_unique<Item>(); };
  const auto first = pool.lease(make), second = pool.lease(make);
  EXPECT_NE(&*first, &*second);
}

TEST(LeasePool, WhatCouldntBeMadeIsMadeByTheNext) {
  LeasePool<Item> pool;
  EXPECT_THROW(pool.lease([]() -> std::unique_ptr<Item> { throw 1; }), int);
  EXPECT_EQ(pool.lease([] { return std::unique_ptr<Item>(new Item{7}); })->plans, 7);
}

struct PlansOfDevice {
  int device = 0;
};

TEST(LeasePool, AThreadKeepsOneForEachDeviceAndLeavesThemToTheNext) {
  int made = 0;
  const auto of = [&](int device) -> PlansOfDevice& {
    return leased_by_thread<PlansOfDevice>(device, [&] {
      ++made;
      return std::unique_ptr<PlansOfDevice>(new PlansOfDevice{device});
    });
  };
  std::set<const PlansOfDevice*> seen;
  for (int run = 0; run < 3; ++run) {
    std::thread([&] {
      for (const int device : {0, 1, 0}) {
        EXPECT_EQ(of(device).device, device);
        seen.insert(&of(device));
      }
    }).join();
  }
  EXPECT_EQ(made, 2);
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
}  // namespace sherd::kernels::device_common
