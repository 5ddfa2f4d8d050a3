#include "sharding/comm/flight_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "sharding/mesh/process_groups.h"
#include "tests/sharding/sharding_support.h"

namespace sherd::sharding {
namespace {

using State = FlightRecorder::State;

TEST(FlightRecorder, KeepsTheLastCallsOldestFirst) {
  FlightRecorder recorder;
  const auto count = static_cast<std::int64_t>(FlightRecorder::kCalls);
  for (std::int64_t i = 1; i <= count + 3; ++i) {
    EXPECT_EQ(recorder.enqueued("reduce", "all_reduce", "unit " + std::to_string(i), i), i);
  }
  recorder.enter(2, State::kDone);  // isn't kept any more
  recorder.enter(count + 3, State::kRunning);
  const auto calls = recorder.calls();
  ASSERT_EQ(std::ssize(calls), count);
  EXPECT_EQ(calls.front().number, 4);
  EXPECT_EQ(calls.front().label, "unit 4");
  EXPECT_EQ(calls.front().state, State::kEnqueued);
  EXPECT_EQ(calls[calls.size() - 2].state, State::kEnqueued);
  EXPECT_EQ(calls.back().number, count + 3);
  EXPECT_EQ(calls.back().state, State::kRunning);
}

// Rank 1 doesn't come to the second collective; the others time out in it.
TEST(FlightRecorder, SaysWhereAWorldStandsStill) {
  engine::LaunchOptions launch;
  launch.mesh = Mesh::sharded(3);
  launch.peer_timeout = std::chrono::seconds(2);
  std::mutex mutex;
  std::map<int, std::string> texts;
  launch.on_calls = [&](int rank, const std::string& calls) {
    std::lock_guard lock(mutex);
    texts[rank] = calls;
  };
  EXPECT_THROW(engine::run_ranks(launch,
                                 [&](Rank& rank) {
                                   Communicator& world = rank.groups->world(Purpose::kReduce);
                                   rank.guard([&] {
                                     world.barrier(rank.reduce(), "first");
                                     if (rank.rank == 1) {
                                       rank.reduce().synchronize();
                                       std::this_thread::sleep_for(std::chrono::seconds(4));
                                       return;
                                     }
                                     world.barrier(rank.reduce(), "second");
                                   });
                                 }),
               PeerError);
  ASSERT_TRUE(texts.contains(0) && texts.contains(2));
  for (const int rank : {0, 2}) {
    const std::string& text = texts[rank];
    EXPECT_NE(text.find("1  done      barrier         first"), std::string::npos) << text;
    EXPECT_NE(text.find("2  running   barrier         second"), std::string::npos) << text;
    EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  }
}

}  // namespace
}  // namespace sherd::sharding
