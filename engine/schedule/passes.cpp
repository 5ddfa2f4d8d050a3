#include "engine/schedule/passes.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace sherd::schedule {
namespace {

bool uses_parameters(const Action& action) {
  return is_compute(action.kind) && action.kind != ActionKind::kWeightGradient;
}

// The gathers and releases of one rank. A *use* is an action that needs parameters, or a pair of
// them.
class Gathering {
 public:
  Gathering(const std::vector<Action>& actions, int most_gathered) : most_(most_gathered) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      std::set<int> chunks;
      if (uses_parameters(actions[i])) chunks.insert(actions[i].chunk);
      if (actions[i].overlaps_next) chunks.insert(actions[++i].chunk);
      if (!chunks.empty()) uses_.push_back(std::move(chunks));
    }
  }

  // What comes before the next use: its own gathers, and the following use's where there is room.
  std::vector<Action> before_use() {
    std::vector<Action> added;
    for (const int chunk : uses_[current_]) gather(chunk, added);
    if (current_ + 1 < uses_.size()) {
      for (const int chunk : uses_[current_ + 1]) {
        if (std::ssize(gathered_) < most_) gather(chunk, added);
      }
    }
    return added;
  }

  // What comes after it: releases of what isn't needed any more.
  std::vector<Action> after_use() {
    std::vector<Action> added;
    for (const int chunk : uses_[current_]) {
      if (next_use(chunk) < uses_.size()) continue;
      gathered_.erase(chunk);
      added.push_back({ActionKind::kRelease, chunk});
    }
    ++current_;
    return added;
  }

 private:
  void gather(int chunk, std::vector<Action>& added) {
    if (gathered_.contains(chunk)) return;
    if (std::ssize(gathered_) == most_) release_latest(added);
    gathered_.insert(chunk);
    added.push_back({ActionKind::kGather, chunk});
  }

  void release_latest(std::vector<Action>& added) {
    int latest = -1;
    for (const int chunk : gathered_) {
      if (uses_[current_].contains(chunk)) continue;
      if (latest < 0 || next_use(chunk) > next_use(latest)) latest = chunk;
    }
    SHERD_CHECK(latest >= 0, "more chunks at once than may be gathered");
    gathered_.erase(latest);
    added.push_back({ActionKind::kRelease, latest});
  }

  std::size_t next_use(int chunk) const {
    std::size_t use = current_ + 1;
    while (use < uses_.size() && !uses_[use].contains(chunk)) ++use;
    return use;
  }

  int most_;
  std::vector<std::set<int>> uses_;
  std::set<int> gathered_;
  std::size_t current_ = 0;
};

std::vector<Action> with_gathers(const std::vector<Action>& actions, int most_gathered) {
  Gathering gathering(actions, most_gathered);
  std::vector<Action> out;
  const auto append = [&](const std::vector<Action>& added) {
    out.insert(out.end(), added.begin(), added.end());
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const bool is_use = uses_parameters(actions[i]);
    if (is_use) append(gathering.before_use());
    out.push_back(actions[i]);
    if (actions[i].overlaps_next) out.push_back(actions[++i]);
    if (is_use) append(gathering.after_use());
  }
  return out;
}

std::vector<Action> with_reductions(const std::vector<Action>& actions, const Schedule& schedule) {
  const int last = schedule.num_micro_batches - 1;
  std::vector<Action> out;
  for (const Action& action : actions) {
    out.push_back(action);
    if (!makes_weight_gradient(action.kind)) continue;
    if (schedule.reduces == Reduces::kPerMicroBatch) {
      out.push_back({ActionKind::kReduce, action.chunk, action.micro_batch});
    } else if (action.micro_batch == last) {
      out.push_back({ActionKind::kReduce, action.chunk});
    }
  }
  return out;
}

// Adds the messages of a schedule's actions. Whether a chunk's output crosses to another rank is
// asked for each action, so it is worked out once.
class Messages {
 public:
  explicit Messages(const ChunkLayout& layout) {
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      crosses_after_.push_back(layout.crosses_after(chunk));
    }
  }

  void add_receives(const Action& action, std::vector<Action>& out) const {
    const auto [kind, chunk, micro_batch, pair] = action;
    if (kind == ActionKind::kForward && crosses_before(chunk)) {
      out.push_back({ActionKind::kReceiveActivations, chunk, micro_batch});
    }
    if (makes_input_gradient(kind) && crosses_after(chunk)) {
      out.push_back({ActionKind::kReceiveGradients, chunk, micro_batch});
    }
  }

  void add_sends(const Action& action, std::vector<Action>& out) const {
    const auto [kind, chunk, micro_batch, pair] = action;
    if (kind == ActionKind::kForward && crosses_after(chunk)) {
      out.push_back({ActionKind::kSendActivations, chunk, micro_batch});
    }
    if (makes_input_gradient(kind) && crosses_before(chunk)) {
      out.push_back({ActionKind::kSendGradients, chunk, micro_batch});
    }
  }

 private:
  bool crosses_after(int chunk) const { return crosses_after_[static_cast<std::size_t>(chunk)]; }
  bool crosses_before(int chunk) const { return chunk > 0 && crosses_after(chunk - 1); }

  std::vector<bool> crosses_after_;
};

}  // namespace

Schedule with_collectives(Schedule schedule, const Collectives& collectives) {
  schedule.gathers = collectives.gathers;
  schedule.reduces = collectives.reduces;
  const int most = collectives.most_gathered > 0
                       ? std::min(collectives.most_gathered, schedule.layout.chunks_per_rank)
                       : schedule.layout.chunks_per_rank;
  for (std::vector<Action>& actions : schedule.ranks) {
    if (collectives.gathers) {
      const bool has_pairs = std::any_of(actions.begin(), actions.end(),
                                         [](const Action& action) { return action.overlaps_next; });
      if (has_pairs && most < 2) {
        throw UsageError(
            "this schedule runs two chunks of a rank at the same time, so 2 must be gathered, not "
            "{}.",
            most);
      }
      actions = with_gathers(actions, most);
    }
    if (collectives.reduces != Reduces::kNever) actions = with_reductions(actions, schedule);
  }
  return schedule;
}

Schedule with_whole_backwards(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.ranks) {
    std::erase_if(actions, [](const Action& action) {
      SHERD_CHECK(!action.overlaps_next || action.kind != ActionKind::kWeightGradient,
                  "a pair of {} and what comes after it", text_of(action));
      return action.kind == ActionKind::kWeightGradient;
    });
    for (Action& action : actions) {
      if (action.kind == ActionKind::kInputGradient) action.kind = ActionKind::kBackward;
    }
  }
  return schedule;
}

Schedule with_messages(Schedule schedule) {
  const Messages messages(schedule.layout);
  std::vector<Action> out;
  for (std::vector<Action>& actions : schedule.ranks) {
    out.clear();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const std::size_t end = actions[i].overlaps_next ? i + 2 : i + 1;
      for (std::size_t at = i; at < end; ++at) messages.add_receives(actions[at], out);
      for (std::size_t at = i; at < end; ++at) out.push_back(actions[at]);
      for (std::size_t at = i; at < end; ++at) messages.add_sends(actions[at], out);
      i = end - 1;
    }
    actions = std::vector<Action>(out.begin(), out.end());  // without room for more
  }
  return schedule;
}

}  // namespace sherd::schedule
