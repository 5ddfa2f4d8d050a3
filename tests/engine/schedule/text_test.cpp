#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/engine/schedule/schedule_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::schedule {
namespace {

using test::error_text;
using test::executable;
using test::request;

const std::string kHeader =
    "pipeline 2 chunks_per_rank 1 placement looped micro_batches 2 gathers no reduces per_step\n";

TEST(ScheduleText, HasALinePerRank) {
  EXPECT_EQ(text_of(executable(request(Order::k1F1B, 2, 2), {.reduces = Reduces::kPerStep})),
            kHeader +
                "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE\n"
                "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE\n");
}

TEST(ScheduleText, PutsPairsInBrackets) {
  const Schedule schedule = generate(request(Order::kDualPipeV, 2, 4));
  EXPECT_NE(text_of(schedule).find(" (0F3+3B1) "), std::string::npos) << text_of(schedule);
}

TEST(ScheduleText, IsReadBack) {
  for (const Order order : all_orders()) {
    for (const Reduces reduces : {Reduces::kNever, Reduces::kPerStep, Reduces::kPerMicroBatch}) {
      const Schedule schedule = executable(
          request(order, 3, 6), {.gathers = reduces != Reduces::kNever, .reduces = reduces});
      EXPECT_EQ(schedule_from(text_of(schedule)), schedule) << name_of(order);
      EXPECT_EQ(schedule_from("\n  " + text_of(schedule) + "\n\n"), schedule) << name_of(order);
    }
  }
}

struct Case {
  std::string text;
  const char* error;
};

TEST(ScheduleText, SaysWhichLineAndWordCannotBeRead) {
  const Case cases[] = {
      {"", "schedule: it is empty."},
      {"rank 0: 0F0\n", "schedule, line 1: expected \"pipeline\" and its value, found \"rank\"."},
      {"pipeline 2", "schedule, line 1: expected \"chunks_per_rank\" and its value, found \"\"."},
      {"pipeline two chunks_per_rank 1",
       "schedule, line 1: pipeline is two, which isn't a number from 1 to 65536."},
      {"pipeline 0 chunks_per_rank 1",
       "schedule, line 1: pipeline is 0, which isn't a number from 1 to 65536."},
      {"pipeline 2 chunks_per_rank 1 placement w",
       "schedule, line 1: placement is w, not one of looped, v."},
      {"pipeline 1 chunks_per_rank 1 placement v micro_batches 1 gathers no reduces never 7",
       "schedule, line 1: \"7\" is one word too many."},
      {"pipeline 65536 chunks_per_rank 65536 placement v micro_batches 65536 gathers no reduces "
       "never",
       "schedule: 4294967296 chunks on 65536 micro-batches; 16777216 forwards are the most."},
      {kHeader + "rank 1: 1F0\n", "schedule, line 2: expected \"rank 0:\" and its actions."},
      {kHeader + "rank 0: 0F0\n", "schedule: 1 lines of ranks for a pipeline of 2."},
      {kHeader + "rank 0: 0F0 0X1\n",
       "schedule, line 2: \"0X1\" isn't an action; one is like 2F5 or (2F5+6B1)."},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(error_text<UsageError>([&] { schedule_from(each.text); }), each.error);
  }
}

TEST(ScheduleText, TakesNoActionThatIsNearlyOne) {
  for (const char* word : {"F0", "0F", "0GATHER3", "0RELEASE1", "0f1", "0F1x", "-1F0", "0F-1", "",
                           "99999999999F0", "0F99999999999", "(0F1+2B2", "0F1+2B2", "(0F1)"}) {
    EXPECT_FALSE(action_from(word)) << word;
    EXPECT_NE(error_text<UsageError>(
                  [&] { schedule_from(kHeader + "rank 0: 0B0 " + word + " 0B1\nrank 1:\n"); }),
              *word ? "(no error)" : "")
        << word;
  }
  EXPECT_EQ(action_from("12RECV_B3"), (Action{ActionKind::kReceiveGradients, 12, 3}));
  EXPECT_EQ(action_from("0REDUCE"), (Action{ActionKind::kReduce, 0}));
  EXPECT_EQ(action_from("0REDUCE2"), (Action{ActionKind::kReduce, 0, 2}));
}

TEST(ChunkLayout, PutsChunksOnRanksRoundOrAsAV) {
  const ChunkLayout looped{3, 2, Placement::kLooped}, v{3, 2, Placement::kV};
  EXPECT_EQ(looped.chunks_of(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(looped.chunks_of(2), (std::vector<int>{2, 5}));
  EXPECT_EQ(v.chunks_of(0), (std::vector<int>{0, 5}));
  EXPECT_EQ(v.chunks_of(2), (std::vector<int>{2, 3}));
  EXPECT_TRUE(looped.crosses_after(2));
  EXPECT_FALSE(v.crosses_after(2));  // the turn
  EXPECT_FALSE(v.crosses_after(5));  // no chunk follows
}

}  // namespace
}  // namespace sherd::schedule
