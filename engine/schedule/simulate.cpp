#include "engine/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/error.h"

namespace sherd::schedule {
namespace {

// What goes through a channel, message by message.
class Channel {
 public:
  struct Message {
    Duration sent;
    std::size_t rank, position;  // of the send
    Span span;
  };

  void send(const Message& message) { waiting_.push_back(message); }

  // The oldest message with its span; nothing while it hasn't been sent. It is taken, not before
  // `now`, and its slot is free.
  std::optional<Message> receive(Duration now, Duration takes, int slots) {
    if (next_ == waiting_.size()) return std::nullopt;
    Message message = waiting_[next_++];
    if (next_ >= kMostTaken && 2 * next_ >= waiting_.size()) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    if (taken_.empty()) taken_.resize(static_cast<std::size_t>(std::max(slots, 1)));
    Duration& slot = taken_[num_taken_++ % taken_.size()];
    const Duration begin = std::max({message.sent, last_arrival_, slot});
    message.span = {begin, begin + takes};
    last_arrival_ = message.span.end;
    slot = std::max(now, last_arrival_);
    return message;
  }

 private:
  static constexpr std::size_t kMostTaken = 8;

  std::vector<Message> waiting_;  // from `next_` on
  std::size_t next_ = 0, num_taken_ = 0;
  std::vector<Duration> taken_;  // of each slot, when its message was
  Duration last_arrival_{};
};

// A rank on its way through its list.
struct Progress {
  std::size_t position = 0;
  Duration now{};  // the compute stream
  Duration gather_free{}, reduce_free{};
  std::map<int, Duration> gathered;  // when a chunk's parameters are there
  std::optional<RankTimes> times;
};

class Clockwork {
 public:
  Clockwork(const Schedule& schedule, const StepTimes& times, const EachSpan& each,
            const Channels& channels)
      : schedule_(schedule),
        times_(times),
        each_(each),
        channels_(channels),
        ranks_(schedule.ranks.size()),
        channels_of_(num_channels(schedule.layout)) {}

  Simulation run() {
    while (sweep()) {
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      SHERD_CHECK(ranks_[rank].position == schedule_.ranks[rank].size(),
                  "a schedule that can't go on");
      simulation_.ranks.push_back(ranks_[rank].times.value_or(RankTimes{}));
    }
    simulation_.makespan = end_ - begin_;
    return std::move(simulation_);
  }

 private:
  // Every rank goes as far as its times are known, in the order of the ranks and back, as messages
  // go.
  bool sweep() {
    bool moved = false;
    for (std::size_t i = 0; i < 2 * ranks_.size(); ++i) {
      while (step(i < ranks_.size() ? i : 2 * ranks_.size() - 1 - i)) moved = true;
    }
    return moved;
  }

  // The rank's next action, if what it waits for is known.
  bool step(std::size_t rank) {
    Progress& progress = ranks_[rank];
    const std::vector<Action>& actions = schedule_.ranks[rank];
    if (progress.position == actions.size()) return false;
    const Action& action = actions[progress.position];
    if (is_receive(action.kind)) {
      const auto message = channel(action).receive(progress.now, times_.message, channels_.slots);
      if (!message) return false;
      tell(message->rank, message->position, message->span);
      const Duration taken = std::max(progress.now, message->span.end);
      tell(rank, progress.position, {progress.now, taken});
      progress.now = taken;
    } else if (is_send(action.kind)) {
      channel(action).send({progress.now, rank, progress.position, {}});
    } else if (is_compute(action.kind)) {
      compute(rank);
    } else {
      tell(rank, progress.position, collective(action, progress));
    }
    ++progress.position;
    return true;
  }

  void tell(std::size_t rank, std::size_t position, const Span& span) {
    begin_ = std::min(begin_, span.begin);
    end_ = std::max(end_, span.end);
    if (each_) each_(rank, position, span);
  }

  Channel& channel(const Action& action) {
    const ChannelId id = channel_of(action, schedule_.layout, channels_.by);
    return channels_of_[index_of(id, schedule_.layout)];
  }

  Span collective(const Action& action, Progress& progress) const {
    const ChunkTimes& times = of(action);
    if (action.kind == ActionKind::kRelease) return {progress.now, progress.now};
    const bool gather = action.kind == ActionKind::kGather;
    Duration& free = gather ? progress.gather_free : progress.reduce_free;
    const Duration begin = std::max(progress.now, free);
    free = begin + (gather ? times.gather : times.reduce);
    if (gather) progress.gathered[action.chunk] = free;
    return {begin, free};
  }

  // The action at the rank's position, or the pair that begins there.
  void compute(std::size_t rank) {
    Progress& progress = ranks_[rank];
    const Action* const actions = &schedule_.ranks[rank][progress.position];
    Duration begin = ready(actions[0], progress);
    if (actions[0].overlaps_next) begin = std::max(begin, ready(actions[1], progress));
    const Duration first = duration(actions[0]);
    computes(rank, {begin, begin + first});
    if (actions[0].overlaps_next) {
      const Duration second = duration(actions[1]);
      const auto hidden = Duration(
          std::llround(times_.overlap * static_cast<double>(std::min(first, second).count())));
      ++progress.position;
      computes(rank, {begin + first - hidden, begin + first + second - hidden});
      progress.now = std::max(begin + first, begin + first + second - hidden);
    } else {
      progress.now = begin + first;
    }
    if (!progress.times) progress.times = RankTimes{.begin = begin};
    progress.times->busy += progress.now - begin;
    progress.times->end = progress.now;
  }

  void computes(std::size_t rank, const Span& span) {
    tell(rank, ranks_[rank].position, span);
    Duration& shortest = simulation_.shortest_compute;
    const Duration takes = span.end - span.begin;
    if (takes.count() > 0 && (shortest.count() == 0 || takes < shortest)) shortest = takes;
  }

  Duration ready(const Action& action, const Progress& progress) const {
    const auto gathered = progress.gathered.find(action.chunk);
    const bool waits =
        action.kind != ActionKind::kWeightGradient && gathered != progress.gathered.end();
    return waits ? std::max(progress.now, gathered->second) : progress.now;
  }

  const ChunkTimes& of(const Action& action) const {
    return times_.chunks[static_cast<std::size_t>(action.chunk)];
  }

  Duration duration(const Action& action) const {
    const ChunkTimes& times = of(action);
    switch (action.kind) {
      case ActionKind::kForward:
        return times.forward;
      case ActionKind::kInputGradient:
        return times.input_gradient;
      case ActionKind::kWeightGradient:
        return times.weight_gradient;
      default:
        return times.backward.count() > 0 ? times.backward
                                          : times.input_gradient + times.weight_gradient;
    }
  }

  const Schedule& schedule_;
  const StepTimes& times_;
  const EachSpan& each_;
  const Channels& channels_;
  std::vector<Progress> ranks_;
  std::vector<Channel> channels_of_;
  Duration begin_ = Duration::max(), end_{};
  Simulation simulation_;
};

}  // namespace

StepTimes equal_chunks(const ChunkLayout& layout, const ChunkTimes& of_rank_share) {
  const int share = layout.chunks_per_rank;
  const ChunkTimes of_chunk{
      .forward = of_rank_share.forward / share,
      .input_gradient = of_rank_share.input_gradient / share,
      .weight_gradient = of_rank_share.weight_gradient / share,
      .backward = of_rank_share.backward / share,
      .gather = of_rank_share.gather / share,
      .reduce = of_rank_share.reduce / share,
  };
  return {.chunks =
              std::vector<ChunkTimes>(static_cast<std::size_t>(layout.num_chunks()), of_chunk)};
}

double Simulation::idle_share() const {
  Duration busy{};
  for (const RankTimes& rank : ranks) busy += rank.busy;
  const auto whole = static_cast<double>(makespan.count()) * static_cast<double>(ranks.size());
  return whole == 0.0 ? 0.0 : 1.0 - static_cast<double>(busy.count()) / whole;
}

Simulation simulate_each(const Schedule& schedule, const StepTimes& times, const EachSpan& each,
                         const Channels& channels) {
  SHERD_CHECK(std::ssize(times.chunks) == schedule.layout.num_chunks(), "times of {} chunks for {}",
              times.chunks.size(), schedule.layout.num_chunks());
  return Clockwork(schedule, times, each, channels).run();
}

Simulation simulate(const Schedule& schedule, const StepTimes& times, const Channels& channels) {
  std::vector<std::vector<Span>> spans;
  for (const auto& actions : schedule.ranks) spans.emplace_back(actions.size());
  Simulation simulation = simulate_each(
      schedule, times,
      [&](std::size_t rank, std::size_t position, const Span& span) {
        spans[rank][position] = span;
      },
      channels);
  simulation.spans = std::move(spans);
  return simulation;
}

}  // namespace sherd::schedule
