// The validator against a machine that executes the lists (event_machine.h), on schedules as they are
// made and on schedules in which something was changed at random.
#include <gtest/gtest.h>

#include <random>

#include "engine/schedule/validate.h"
#include "tests/engine/schedule/event_machine.h"
#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::EventMachine;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  Schedule any_schedule() {
    OrderRequest request;
    request.order = all_orders()[static_cast<std::size_t>(below(7))];
    request.num_ranks = 1 + below(4);
    request.chunks_per_rank = default_chunks_per_rank(request.order);
    request.num_micro_batches = 1 + below(6);
    if (request.order == Order::kInterleaved1F1B) {
      request.chunks_per_rank += below(2);
      request.num_micro_batches = request.num_ranks * (1 + below(2));
    } else if (request.order == Order::kDualPipeV) {
      request.num_micro_batches = 2 * request.num_ranks + below(3);
    }
    const Collectives collectives{.gathers = below(3) == 0,
                                  .reduces = static_cast<Reduces>(below(3))};
    return test::executable(request, collectives);
  }

  // One change; every second is of two neighbours, which often leaves a list good.
  void change(Schedule& schedule) {
    const int rank = below(schedule.layout.num_ranks);
    std::vector<Action>& list = schedule.ranks[static_cast<std::size_t>(rank)];
    if (list.empty()) return;
    const int size = static_cast<int>(list.size());
    const int at = below(size), other = below(size);
    Action& action = list[static_cast<std::size_t>(at)];
    switch (below(16)) {
      case 0:
        list.erase(list.begin() + at);
        break;
      case 1:
        list.insert(list.begin() + other, Action(action));
        break;
      case 2:
        std::swap(action, list[static_cast<std::size_t>(other)]);
        break;
      case 3:
        action.micro_batch = below(schedule.num_micro_batches + 1);
        break;
      case 4:
        action.chunk = below(schedule.layout.num_chunks() + 1);
        break;
      case 5:
        action.kind = static_cast<ActionKind>(below(11));
        break;
      case 6:
        action.overlaps_next = !action.overlaps_next;
        break;
      case 7:
        split(list, at);
        break;
      default:  // a neighbour's place
        if (at + 1 < size) std::swap(action, list[static_cast<std::size_t>(at) + 1]);
    }
    if (!list.empty()) list.back().overlaps_next = false;
    for (std::size_t i = 0; i + 1 < list.size(); ++i) {  // three at once have no text
      if (list[i].overlaps_next) list[i + 1].overlaps_next = false;
    }
    for (Action& each : list) {
      const bool names_none = each.kind == ActionKind::kGather || each.kind == ActionKind::kRelease;
      if (names_none) each.micro_batch = kNoMicroBatch;
      if (!names_none && each.kind != ActionKind::kReduce) {
        each.micro_batch = std::max(each.micro_batch, 0);
      }
    }
  }

 private:
  // A backward in two halves, the second some actions later.
  void split(std::vector<Action>& list, int at) {
    Action& action = list[static_cast<std::size_t>(at)];
    if (action.kind != ActionKind::kBackward) return;
    if (at > 0 && list[static_cast<std::size_t>(at) - 1].overlaps_next) return;
    action.kind = ActionKind::kInputGradient;
    const Action half{ActionKind::kWeightGradient, action.chunk, action.micro_batch};
    const int later = std::min(at + 1 + below(4), static_cast<int>(list.size()));
    list.insert(list.begin() + later, half);
  }

  std::mt19937 random_;
};

TEST(Agreement, TheValidatorSaysOfEveryListWhatAMachineThatExecutesItShows) {
  Mutator mutator(17);
  int num_good = 0, num_stuck = 0, num_wrong = 0, num_changed_and_good = 0;
  for (int i = 0; i < 5000; ++i) {
    Schedule schedule = mutator.any_schedule();
    const Schedule original = schedule;
    const int changes = mutator.below(4);
    for (int change = 0; change < changes; ++change) mutator.change(schedule);
    const int slots = mutator.below(4) == 0 ? mutator.below(4) : 2;

    const std::string text = text_of(schedule);
    const auto violation = first_violation(schedule, {.channels = {.slots = slots}});
    const auto outcome =
        EventMachine(text, static_cast<std::size_t>(slots), static_cast<unsigned>(i)).run();
    ASSERT_EQ(!violation, outcome == EventMachine::Outcome::kGood)
        << (violation ? violation->text : "no violation") << "\n"
        << slots << " slots, list " << i << ":\n"
        << text;
    ASSERT_EQ(schedule_from(text), schedule) << text;
    num_good += outcome == EventMachine::Outcome::kGood;
    num_stuck += outcome == EventMachine::Outcome::kStuck;
    num_wrong += outcome == EventMachine::Outcome::kWrong;
    num_changed_and_good += !violation && schedule != original;
  }
  // There are enough of each kind for a meaningful test.
  EXPECT_GT(num_good, 500);
  EXPECT_GT(num_stuck, 300);
  EXPECT_GT(num_wrong, 500);
  EXPECT_GT(num_changed_and_good, 200);
  RecordProperty("good", num_good);
  RecordProperty("stuck", num_stuck);
  RecordProperty("wrong", num_wrong);
  RecordProperty("changed_and_good", num_changed_and_good);
}

}  // namespace
}  // namespace sherd::schedule
