#include "core/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

namespace sherd {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

std::vector<json> events(const Trace& trace, const std::string& phase) {
  std::vector<json> out;
  for (const json& event : json::parse(trace.to_chrome_json())) {
    if (event.at("ph") == phase) out.push_back(event);
  }
  return out;
}

TEST(Trace, IsOffUntilItIsStarted) {
  Trace trace;
  const auto now = Clock::now();
  trace.add(0, "compute", "before", now, now);
  trace.start();
  trace.add(0, "compute", "during", now, now);
  trace.stop();
  trace.add(0, "compute", "after", now, now);
  ASSERT_EQ(trace.spans().size(), 1u);
  EXPECT_EQ(trace.spans()[0].label, "during");
}

TEST(Trace, WithoutSpansIsStillJson) {
  EXPECT_TRUE(json::parse(Trace().to_chrome_json()).is_array());
}

TEST(Trace, WritesWhatWasAddedInMicroseconds) {
  Trace trace;
  trace.start();
  const auto origin = Clock::now();
  trace.add(0, "compute", "forward", origin, origin + 1500us);
  trace.add(1, "gather", "block.3", origin + 250us, origin + 750us);
  const std::vector<json> spans = events(trace, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "forward");
  EXPECT_EQ(spans[0].at("pid"), 0);
  EXPECT_NEAR(spans[0].at("ts").get<double>(), 0.0, 1e-3);
  EXPECT_NEAR(spans[0].at("dur").get<double>(), 1500.0, 1e-3);
  EXPECT_EQ(spans[1].at("name"), "block.3");
  EXPECT_EQ(spans[1].at("pid"), 1);
  EXPECT_NEAR(spans[1].at("ts").get<double>(), 250.0, 1e-3);
  EXPECT_NEAR(spans[1].at("dur").get<double>(), 500.0, 1e-3);
}

TEST(Trace, NamesRanksAndStreams) {
  Trace trace;
  trace.start();
  const auto now = Clock::now();
  for (const int rank : {0, 1}) {
    for (const char* stream : {"compute", "gather"}) trace.add(rank, stream, "x", now, now);
  }
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const json& event : events(trace, "M")) {
    const std::string name = event.at("args").at("name");
    if (event.at("name") == "process_name") processes[event.at("pid")] = name;
    if (event.at("name") == "thread_name") threads[{event.at("pid"), event.at("tid")}] = name;
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(threads.size(), 4u);
  for (const json& event : events(trace, "X")) {
    EXPECT_EQ(threads.count({event.at("pid"), event.at("tid")}), 1u) << "an unnamed thread";
  }
}

TEST(Trace, TakesSpansFromManyThreads) {
  Trace trace;
  trace.start();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&trace, rank] {
      for (int i = 0; i < 100; ++i) {
        const auto now = Clock::now();
        trace.add(rank, "compute", "x", now, now);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(events(trace, "X").size(), 400u);
}

}  // namespace
}  // namespace sherd
