#include "engine/launch/rank_watch.h"

#include <gtest/gtest.h>

#include <atomic>

#include "core/error.h"
#include "engine/launch/launch.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::engine {
namespace {

using std::chrono::milliseconds;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

// A rank that loops neither comes nor ends; its peers wait for as long as they may, and the run then ends
// without it.
TEST(RankWatch, NamesTheRankThatLoopsOnceItsPeersHaveGivenUp) {
  LaunchOptions launch;
  launch.mesh = sharding::Mesh::sharded(3);
  launch.threads_per_rank = 1;
  launch.peer_timeout = std::chrono::seconds(2);
  std::atomic<bool> released{false};
  std::vector<int> named;
  std::string failure;
  launch.on_stuck = [&](const std::vector<int>& ranks, const std::exception_ptr& error) {
    named = ranks;
    failure = text_of(error);
    released = true;  // a program would end here
  };
  EXPECT_THROW(
      run_ranks(launch,
                [&](sharding::Rank& rank) {
                  rank.guard([&] {
                    while (rank.rank == 1 && !released) std::this_thread::yield();
                    if (rank.rank == 1) return;
                    rank.groups->world(sharding::Purpose::kGather).barrier(rank.gather(), "step");
                    rank.gather().synchronize();
                  });
                }),
      PeerError);
  EXPECT_EQ(named, std::vector<int>{1});
  EXPECT_NE(failure.find(" waited 2 s for rank 1 in barrier of step."), std::string::npos)
      << failure;
}

TEST(RankWatch, LeavesARunAloneThatEndsAsItWasAskedTo) {
  sharding::FlightRecorder recorder;
  std::atomic<int> looks{0}, calls{0};
  bool stuck = false;
  {
    RankWatch watch({.on_stuck = [&](const auto&, const auto&) { stuck = true; },
                     .stop_asked =
                         [&] {
                           ++looks;
                           return false;
                         },
                     .on_calls = [&](int, const std::string&) { ++calls; },
                     .for_others = milliseconds(0)});
    watch.began(0, recorder);
    watch.failed(std::make_exception_ptr(Requeue("SIGTERM")));
    while (looks < 3) std::this_thread::yield();
    watch.ended(0);
  }
  EXPECT_FALSE(stuck);
  EXPECT_EQ(calls, 0);
}

TEST(RankWatch, TellsOnceAfterASignalWhatRanksThatAreThereWereAskedFor) {
  sharding::FlightRecorder recorders[3];
  for (auto& recorder : recorders) recorder.enqueued("world", "all_gather", "block.1", 64);
  std::map<int, std::string> told;
  std::atomic<int> num_told{0};
  std::atomic<bool> later{false};
  {
    RankWatch watch({.on_stuck = [&](const auto&, const auto&) { later = true; },
                     .stop_asked = [] { return true; },
                     .on_calls =
                         [&](int rank, const std::string& text) {
                           told[rank] = text;
                           ++num_told;
                         },
                     .for_others = milliseconds(300)});
    for (int rank = 0; rank < 3; ++rank) watch.began(rank, recorders[rank]);
    watch.ended(1);
    while (num_told < 2) std::this_thread::yield();
    watch.failed(std::make_exception_ptr(PeerError("gone")));
    while (!later) std::this_thread::yield();  // three looks
    EXPECT_EQ(num_told, 2);
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_FALSE(told.contains(1));
  EXPECT_EQ(told[2], recorders[2].text());
}

}  // namespace
}  // namespace sherd::engine
