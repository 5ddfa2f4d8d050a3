#include "engine/schedule/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "engine/schedule/validate.h"
#include "tests/engine/schedule/schedule_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::schedule {
namespace {

using test::error_text;
using test::executable;
using test::request;

std::string list_text(const Schedule& schedule, int rank) {
  return actions_text(schedule.ranks[static_cast<std::size_t>(rank)]);
}

TEST(Passes, MessagesAreNextToWhatNeedsAndMakesThem) {
  const Schedule schedule = executable(request(Order::k1F1B, 3, 2));
  EXPECT_EQ(list_text(schedule, 1),
            "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 1B0 1SEND_B0 1RECV_B1 1B1 "
            "1SEND_B1");
}

TEST(Passes, APairReceivesBeforeAndSendsAfterBoth) {
  const std::string list = list_text(executable(request(Order::kDualPipeV, 3, 8)), 1);
  EXPECT_NE(list.find("4RECV_F3 1RECV_B0 (4F3+1B0) 4SEND_F3 1SEND_B0"), std::string::npos) << list;
}

TEST(Passes, AChunkIsGatheredOncePerStepAndReleasedAfterItsLastUse) {
  EXPECT_EQ(list_text(executable(request(Order::kZbH1, 2, 2), {.gathers = true}), 1),
            "1GATHER 1RECV_F0 1F0 1I0 1SEND_B0 1RECV_F1 1F1 1I1 1SEND_B1 1RELEASE 1W0 1W1");
  for (const Order order : all_orders()) {
    const Schedule schedule = executable(request(order, 4, 8), {.gathers = true});
    std::map<int, int> gathers;
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions)
        gathers[action.chunk] += action.kind == ActionKind::kGather;
    }
    for (const auto& [chunk, count] : gathers) EXPECT_EQ(count, 1) << name_of(order);
    EXPECT_FALSE(first_violation(schedule)) << name_of(order);
  }
}

TEST(Passes, TheNextChunkIsGatheredOneUseAhead) {
  const std::string list =
      list_text(executable(request(Order::kInterleaved1F1B, 2, 2, 2), {.gathers = true}), 0);
  EXPECT_TRUE(list.starts_with("0GATHER 0F0 0SEND_F0 2GATHER 0F1 0SEND_F1 2RECV_F0 2F0")) << list;
}

// The fewest gathers for a rank's uses with room for `most` chunks, by trying every choice.
int fewest_gathers(const std::vector<int>& uses, std::size_t at, const std::set<int>& gathered,
                   std::size_t most) {
  if (at == uses.size()) return 0;
  if (gathered.contains(uses[at])) return fewest_gathers(uses, at + 1, gathered, most);
  int fewest = 1 << 20;
  std::set<int> more = gathered;
  more.insert(uses[at]);
  if (more.size() <= most) return 1 + fewest_gathers(uses, at + 1, more, most);
  for (const int victim : gathered) {
    std::set<int> less = more;
    less.erase(victim);
    fewest = std::min(fewest, 1 + fewest_gathers(uses, at + 1, less, most));
  }
  return fewest;
}

TEST(Passes, WithLittleRoomNoChoiceGathersLessOften) {
  for (const int chunks : {2, 3, 4}) {
    for (int most = 1; most <= chunks; ++most) {
      const OrderRequest of = request(Order::kInterleaved1F1B, 2, 4, chunks);
      const Schedule schedule = executable(of, {.gathers = true, .most_gathered = most});
      EXPECT_FALSE(first_violation(schedule)) << chunks << " chunks, room for " << most;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        std::vector<int> uses;
        int gathers = 0, alive = 0, most_alive = 0;
        for (const Action& action : schedule.ranks[rank]) {
          if (is_compute(action.kind)) uses.push_back(action.chunk);
          gathers += action.kind == ActionKind::kGather;
          alive += action.kind == ActionKind::kGather;
          alive -= action.kind == ActionKind::kRelease;
          most_alive = std::max(most_alive, alive);
        }
        EXPECT_EQ(gathers, fewest_gathers(uses, 0, {}, static_cast<std::size_t>(most)))
            << chunks << " chunks, room for " << most;
        EXPECT_LE(most_alive, most);
      }
    }
  }
}

TEST(Passes, AnOrderThatRunsTwoChunksAtOnceNeedsBoth) {
  EXPECT_EQ(
      error_text<UsageError>([] {
        executable(request(Order::kDualPipeV, 2, 4), {.gathers = true, .most_gathered = 1});
      }),
      "this schedule runs two chunks of a rank at the same time, so 2 must be gathered, not 1.");
  EXPECT_FALSE(first_violation(
      executable(request(Order::kZbV, 2, 4), {.gathers = true, .most_gathered = 1})));
}

TEST(Passes, GradientsAreReducedAfterTheLastMicroBatchOrAfterEach) {
  const OrderRequest one_rank = request(Order::kLayerParallel, 1, 2);
  EXPECT_EQ(list_text(executable(one_rank, {.reduces = Reduces::kPerStep}), 0),
            "0F0 0B0 0F1 0B1 0REDUCE");
  EXPECT_EQ(list_text(executable(one_rank, {.reduces = Reduces::kPerMicroBatch}), 0),
            "0F0 0B0 0REDUCE0 0F1 0B1 0REDUCE1");
  EXPECT_EQ(
      list_text(executable(request(Order::kZbH1, 2, 2), {.reduces = Reduces::kPerMicroBatch}), 1),
      "1RECV_F0 1F0 1I0 1SEND_B0 1RECV_F1 1F1 1I1 1SEND_B1 1W0 1REDUCE0 1W1 1REDUCE1");
}

TEST(Passes, WhatTheyMakeCanBeExecuted) {
  for (const Order order : all_orders()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const bool gathers : {false, true}) {
        for (const Reduces reduces :
             {Reduces::kNever, Reduces::kPerStep, Reduces::kPerMicroBatch}) {
          const auto violation = first_violation(executable(
              request(order, ranks, 2 * ranks), {.gathers = gathers, .reduces = reduces}));
          EXPECT_FALSE(violation) << name_of(order) << ": " << violation->text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::schedule
