#include "engine/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/error.h"

namespace sherd::schedule {
namespace {

// What goes through a channel, message by message: when each was handed over, arrived, was taken.
class Channel {
 public:
  // A message is handed over; its span is known when a slot is.
  void send(Duration at, Span* span) { messages_.push_back({at, span, std::nullopt}); }

  // When the oldest message arrives; nothing while it hasn't been sent.
  std::optional<Duration> arrival(Duration takes, int slots) {
    if (taken_ == messages_.size()) return std::nullopt;
    resolve(taken_, takes, slots);
    return messages_[taken_].span->end;
  }

  // It is taken, and its slot is free.
  void receive(Duration at) { messages_[taken_++].taken = at; }

 private:
  struct Message {
    Duration sent;
    Span* span;
    std::optional<Duration> taken;
  };

  // Messages before `message` have been taken, so all that it waits for is known.
  void resolve(std::size_t message, Duration takes, int slots) {
    Duration begin = messages_[message].sent;
    if (message > 0) begin = std::max(begin, messages_[message - 1].span->end);
    const auto room = static_cast<std::size_t>(std::max(slots, 1));
    if (message >= room) begin = std::max(begin, *messages_[message - room].taken);
    *messages_[message].span = {begin, begin + takes};
  }

  std::vector<Message> messages_;
  std::size_t taken_ = 0;
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
  Clockwork(const Schedule& schedule, const StepTimes& times, const Channels& channels)
      : schedule_(schedule), times_(times), channels_(channels), ranks_(schedule.ranks.size()) {
    for (const auto& actions : schedule.ranks) simulation_.spans.emplace_back(actions.size());
  }

  Simulation run() {
    while (sweep()) {
    }
    Duration begin = Duration::max(), end{};
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      CHECK(ranks_[rank].position == schedule_.ranks[rank].size(), "a schedule that can't go on");
      simulation_.ranks.push_back(ranks_[rank].times.value_or(RankTimes{}));
      for (const Span& span : simulation_.spans[rank]) {
        begin = std::min(begin, span.begin);
        end = std::max(end, span.end);
      }
    }
    simulation_.makespan = end - begin;
    return std::move(simulation_);
  }

 private:
  // Every rank goes as far as its times are known, in the order of the ranks and back, as messages go.
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
    Span& span = simulation_.spans[rank][progress.position];
    if (is_receive(action.kind)) {
      Channel& channel = channels_of_[id(action)];
      const auto arrival = channel.arrival(times_.message, channels_.slots);
      if (!arrival) return false;
      span = {progress.now, std::max(progress.now, *arrival)};
      progress.now = span.end;
      channel.receive(progress.now);
    } else if (is_send(action.kind)) {
      span = {progress.now, progress.now};
      channels_of_[id(action)].send(progress.now, &span);
    } else if (is_compute(action.kind)) {
      compute(rank);
    } else {
      span = collective(action, progress);
    }
    ++progress.position;
    return true;
  }

  ChannelId id(const Action& action) const {
    return channel_of(action, schedule_.layout, channels_.by);
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
    Span* const spans = &simulation_.spans[rank][progress.position];
    Duration begin = ready(actions[0], progress);
    if (actions[0].overlaps_next) begin = std::max(begin, ready(actions[1], progress));
    const Duration first = duration(actions[0]);
    spans[0] = {begin, begin + first};
    if (actions[0].overlaps_next) {
      const Duration second = duration(actions[1]);
      const auto hidden = Duration(
          std::llround(times_.overlap * static_cast<double>(std::min(first, second).count())));
      spans[1] = {begin + first - hidden, begin + first + second - hidden};
      ++progress.position;
    }
    Span& last = simulation_.spans[rank][progress.position];
    progress.now = std::max(spans[0].end, last.end);
    if (!progress.times) progress.times = RankTimes{.begin = begin};
    progress.times->busy += progress.now - begin;
    progress.times->end = progress.now;
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
  const Channels& channels_;
  std::vector<Progress> ranks_;
  std::map<ChannelId, Channel> channels_of_;
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

Simulation simulate(const Schedule& schedule, const StepTimes& times, const Channels& channels) {
  CHECK(std::ssize(times.chunks) == schedule.layout.num_chunks(), "times of {} chunks for {}",
        times.chunks.size(), schedule.layout.num_chunks());
  return Clockwork(schedule, times, channels).run();
}

}  // namespace sherd::schedule
