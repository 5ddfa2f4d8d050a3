#include "engine/schedule/deadlock.h"

#include <fmt/core.h>

#include <deque>
#include <vector>

namespace sherd::schedule {
namespace {

class Run {
 public:
  Run(const Schedule& schedule, const Channels& channels)
      : schedule_(schedule),
        channels_(channels),
        position_(schedule.ranks.size(), 0),
        messages_(num_channels(schedule.layout)) {}

  std::optional<Violation> deadlock() {
    while (sweep()) {
    }
    std::optional<Violation> violation;
    for (std::size_t rank = 0; rank < position_.size(); ++rank) {
      const Action* action = next(rank);
      if (!action) continue;
      const std::string waits =
          fmt::format("rank {} waits at position {} ({})", rank, position_[rank], text_of(*action));
      if (!violation) {
        violation = {static_cast<int>(rank), static_cast<int>(position_[rank]),
                     "no rank can continue: " + waits};
      } else {
        violation->text += ", " + waits;
      }
    }
    if (violation) violation->text += ".";
    return violation;
  }

 private:
  // Every rank goes as far as it can, in the order of the ranks and back, as messages go.
  bool sweep() {
    bool moved = false;
    const std::size_t num_ranks = position_.size();
    for (std::size_t i = 0; i < 2 * num_ranks; ++i) {
      while (step(i < num_ranks ? i : 2 * num_ranks - 1 - i)) moved = true;
    }
    return moved;
  }

  const Action* next(std::size_t rank) const {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    return position_[rank] < actions.size() ? &actions[position_[rank]] : nullptr;
  }

  // Does the rank's next action, if it can be done.
  bool step(std::size_t rank) {
    const Action* action = next(rank);
    if (!action) return false;
    if (is_send(action->kind) && !send(*action)) return false;
    if (is_receive(action->kind) && !receive(*action)) return false;
    ++position_[rank];
    return true;
  }

  std::deque<Action>& messages(const Action& action) {
    const ChannelId channel = channel_of(action, schedule_.layout, channels_.by);
    return messages_[index_of(channel, schedule_.layout)];
  }

  bool send(const Action& action) {
    const Action receive = receive_of(action);
    if (channels_.slots == 0) {
      const auto receiver = static_cast<std::size_t>(schedule_.layout.rank_of(receive.chunk));
      const Action* other = next(receiver);
      if (!other || *other != receive) return false;
      ++position_[receiver];
      return true;
    }
    std::deque<Action>& waiting = messages(action);
    if (std::ssize(waiting) == channels_.slots) return false;
    waiting.push_back(receive);
    return true;
  }

  bool receive(const Action& action) {
    std::deque<Action>& waiting = messages(action);
    if (waiting.empty() || waiting.front() != action) return false;
    waiting.pop_front();
    return true;
  }

  const Schedule& schedule_;
  const Channels& channels_;
  std::vector<std::size_t> position_;
  std::vector<std::deque<Action>> messages_;  // by channel
};

}  // namespace

std::optional<Violation> deadlock(const Schedule& schedule, const Channels& channels) {
  return Run(schedule, channels).deadlock();
}

}  // namespace sherd::schedule
