#include "engine/schedule/validate.h"

#include <gtest/gtest.h>

#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::executable;
using test::request;

std::string violation_of(const Schedule& schedule, const Rules& rules = {}) {
  const auto violation = first_violation(schedule, rules);
  return violation ? violation->text : "(none)";
}

// Two ranks with one chunk and two micro-batches each; rank 1's list is a good one unless given.
std::string violation_in(
    const std::string& rank0,
    const std::string& rank1 = "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    const std::string& collectives = "gathers no reduces never") {
  return violation_of(
      schedule_from("pipeline 2 chunks_per_rank 1 placement looped micro_batches 2 " + collectives +
                    "\nrank 0: " + rank0 + "\nrank 1: " + rank1 + "\n"));
}

struct ValidationCase {
  const char* rank0;
  const char* violation;
};

TEST(Validate, SaysTheFirstViolationOfARanksList) {
  const ValidationCase cases[] = {
      {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1", "(none)"},
      {"0F0 0SEND_F0 1F0", "rank 0 can't do 1F0 at position 2: chunk 1 is on rank 1."},
      {"0F0 2F0", "rank 0 can't do 2F0 at position 1: there are chunks 0 to 1."},
      {"0F2", "rank 0 can't do 0F2 at position 0: it names a micro-batch from 0 to 1."},
      {"0F0 0SEND_F0 0F0", "rank 0 can't do 0F0 at position 2: this forward has already run."},
      {"0F0 0SEND_F0 0B0",
       "rank 0 can't do 0B0 at position 2: its gradient comes with 0RECV_B0, which hasn't run "
       "yet."},
      {"0RECV_B0 0B0", "rank 0 can't do 0B0 at position 1: 0F0 hasn't run yet."},
      {"0F0 0SEND_F0 0RECV_B0 0B0 0B0",
       "rank 0 can't do 0B0 at position 4: this micro-batch's backward has already run."},
      {"0F0 0SEND_F0 0RECV_B0 0I0 0B0",
       "rank 0 can't do 0B0 at position 4: this micro-batch's backward has already run."},
      {"0F0 0SEND_F0 0W0", "rank 0 can't do 0W0 at position 2: 0I0 hasn't run yet."},
      {"0F0 0SEND_F0 0RECV_B0 0B0 0W0",
       "rank 0 can't do 0W0 at position 4: this weight gradient has already run."},
      {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0B1",
       "rank 0 can't do 0B1 at position 7: weight gradients of a chunk ascend, and 0W0 is next."},
      {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0I1 0W1",
       "rank 0 can't do 0W1 at position 8: weight gradients of a chunk ascend, and 0W0 is next."},
      {"0F0 0SEND_F1",
       "rank 0 can't do 0SEND_F1 at position 1: what it sends hasn't been computed yet."},
      {"0F0 0SEND_F0 0SEND_F0", "rank 0 can't do 0SEND_F0 at position 2: it was sent before."},
      {"0F0 0SEND_B0", "rank 0 can't do 0SEND_B0 at position 1: no rank receives it."},
      {"0RECV_F0", "rank 0 can't do 0RECV_F0 at position 0: no rank sends it."},
      {"0RECV_B0 0RECV_B0", "rank 0 can't do 0RECV_B0 at position 1: it was received before."},
      {"0F0 0GATHER",
       "rank 0 can't do 0GATHER at position 1: nothing is gathered in this schedule."},
      {"0REDUCE", "rank 0 can't do 0REDUCE at position 0: nothing is reduced in this schedule."},
      {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0", "rank 0 ends at position 6: 0B1 is missing."},
      {"0F0 0SEND_F0 0RECV_B0 0B0", "rank 0 ends at position 4: 0F1 is missing."},
      {"0F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
       "rank 0 ends at position 7: 0SEND_F0 is missing."},
      {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0I1 0W0",
       "rank 0 ends at position 9: 0W1 is missing."},
      {"(0F0+0F1)",
       "rank 0 can't do 0F0 at position 0: only a forward and the backward after it can run "
       "together."},
      {"0F0 0SEND_F0 0RECV_B0 (0F1+0I0)",
       "rank 0 can't do 0F1 at position 3: only a forward and the backward after it can run "
       "together."},
      {"0RECV_B0 (0F0+0B0)",
       "rank 0 can't do 0F0 at position 1: a backward can't run together with its own forward."},
  };
  for (const ValidationCase& each : cases) EXPECT_EQ(violation_in(each.rank0), each.violation);
}

TEST(Validate, SaysThatALaterRanksInputOrMessageIsMissing) {
  const std::string good = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1";
  EXPECT_EQ(
      violation_in(good, "1F0"),
      "rank 1 can't do 1F0 at position 0: its input comes with 1RECV_F0, which hasn't run yet.");
  EXPECT_EQ(violation_in(good, "1RECV_F0 1F0 1B0 1RECV_F1 1F1 1B1 1SEND_B1"),
            "rank 1 ends at position 7: 1SEND_B0 is missing.");
}

TEST(Validate, SaysThatMessagesComeInAnotherOrder) {
  EXPECT_EQ(
      violation_in("0F0 0F1 0SEND_F1 0SEND_F0 0RECV_B0 0B0 0RECV_B1 0B1"),
      "no rank can continue: rank 0 waits at position 4 (0RECV_B0), rank 1 waits at position 0 "
      "(1RECV_F0).");
}

TEST(Validate, AVsTurnNeedsWhatTheSameRankMakes) {
  const std::string header =
      "pipeline 1 chunks_per_rank 2 placement v micro_batches 1 gathers no reduces never\nrank 0: ";
  const auto violation = [&](const std::string& list) {
    return violation_of(schedule_from(header + list + "\n"));
  };
  EXPECT_EQ(violation("0F0 1F0 1B0 0B0"), "(none)");
  EXPECT_EQ(violation("1F0"),
            "rank 0 can't do 1F0 at position 0: its input is made by 0F0, which hasn't run yet.");
  EXPECT_EQ(
      violation("0F0 1F0 0B0"),
      "rank 0 can't do 0B0 at position 2: its gradient is made by the backward of chunk 1, which "
      "hasn't run yet.");
  EXPECT_EQ(violation("0F0 0SEND_F0"),
            "rank 0 can't do 0SEND_F0 at position 1: no rank receives it.");
}

TEST(Validate, ParametersAreGatheredWhileTheyAreUsed) {
  const auto violation = [](const std::string& list) {
    return violation_of(schedule_from(
        "pipeline 1 chunks_per_rank 1 placement looped micro_batches 1 gathers yes reduces never\n"
        "rank 0: " +
        list + "\n"));
  };
  EXPECT_EQ(violation("0GATHER 0F0 0I0 0RELEASE 0W0"), "(none)");
  EXPECT_EQ(violation("0F0"),
            "rank 0 can't do 0F0 at position 0: the parameters of chunk 0 aren't gathered.");
  EXPECT_EQ(violation("0GATHER 0F0 0RELEASE 0B0"),
            "rank 0 can't do 0B0 at position 3: the parameters of chunk 0 aren't gathered.");
  EXPECT_EQ(violation("0GATHER 0GATHER"),
            "rank 0 can't do 0GATHER at position 1: the chunk is gathered already.");
  EXPECT_EQ(violation("0RELEASE"),
            "rank 0 can't do 0RELEASE at position 0: the chunk isn't gathered.");
  EXPECT_EQ(violation("0GATHER 0F0 0B0"), "rank 0 ends at position 3: 0RELEASE is missing.");
}

TEST(Validate, GradientsAreReducedAsOftenAsTheScheduleSays) {
  const auto violation = [](const std::string& reduces, const std::string& list) {
    return violation_of(schedule_from(
        "pipeline 1 chunks_per_rank 1 placement looped micro_batches 2 gathers no reduces " +
        reduces + "\nrank 0: " + list + "\n"));
  };
  EXPECT_EQ(violation("per_step", "0F0 0B0 0F1 0B1 0REDUCE"), "(none)");
  EXPECT_EQ(violation("per_step", "0F0 0B0 0REDUCE 0F1 0B1"),
            "rank 0 can't do 0REDUCE at position 2: 0W1 is still to come.");
  EXPECT_EQ(violation("per_step", "0F0 0B0 0F1 0B1 0REDUCE 0REDUCE"),
            "rank 0 can't do 0REDUCE at position 5: the chunk was reduced before.");
  EXPECT_EQ(
      violation("per_step", "0F0 0B0 0F1 0B1 0REDUCE1"),
      "rank 0 can't do 0REDUCE1 at position 4: it is for all micro-batches together and names "
      "none.");
  EXPECT_EQ(violation("per_step", "0F0 0B0 0F1 0B1"),
            "rank 0 ends at position 4: 0REDUCE is missing.");
  EXPECT_EQ(violation("per_micro_batch", "0F0 0B0 0REDUCE0 0F1 0B1 0REDUCE1"), "(none)");
  EXPECT_EQ(violation("per_micro_batch", "0F0 0B0 0F1 0B1"),
            "rank 0 can't do 0B1 at position 3: 0REDUCE0 comes first.");
  EXPECT_EQ(violation("per_micro_batch", "0F0 0B0 0REDUCE1"),
            "rank 0 can't do 0REDUCE1 at position 2: reductions of a chunk ascend, and 0REDUCE0 is "
            "next.");
  EXPECT_EQ(violation("per_micro_batch", "0F0 0REDUCE0"),
            "rank 0 can't do 0REDUCE0 at position 1: 0W0 hasn't run yet.");
  EXPECT_EQ(violation("per_micro_batch", "0F0 0B0 0REDUCE0 0F1 0B1"),
            "rank 0 ends at position 5: 0REDUCE1 is missing.");
}

// 1F1B on four ranks keeps 4, 3, 2 and 1.
TEST(Validate, NoMoreActivationsAreAliveThanWerePlanned) {
  const Schedule schedule = executable(request(Order::k1F1B, 4, 8));
  EXPECT_EQ(violation_of(schedule, {.most_activations = {4, 3, 2, 1}}), "(none)");
  EXPECT_EQ(violation_of(schedule, {.most_activations = {4, 2, 2, 1}}),
            "rank 1 can't do 1F2 at position 7: it is activation 3 alive; 2 are planned.");
}

}  // namespace
}  // namespace sherd::schedule
