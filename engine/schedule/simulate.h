/// Simulates when each action of a schedule happens, given each action's time.
///
/// Each rank computes one action after the other, in its list's order. A pair takes the time of
/// both, minus what overlapping hides. Sends, gathers and reductions overlap the computation, as on
/// separate streams:
///
///   send      begins when the message before it in its channel has arrived and a slot is free
///   receive   waits for the message
///   gather    one at a time on a rank; a chunk's forward or input gradient waits for it
///   reduce    one at a time on a rank; the step ends when all have ended
///
/// The schedule must have no violation (validate.h).
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "engine/schedule/channels.h"

namespace sherd::schedule {

using Duration = std::chrono::nanoseconds;

struct ChunkTimes {
  Duration forward{}, input_gradient{}, weight_gradient{};
  /// Both halves in one; 0: their sum.
  Duration backward{};
  Duration gather{}, reduce{};
};

struct StepTimes {
  std::vector<ChunkTimes> chunks;  ///< one per chunk
  Duration message{};              ///< of activations or gradients, from rank to rank
  /// Share of a pair's shorter action that the longer one hides: 0 none, 1 all.
  double overlap = 0.0;
};

/// The times of a model divided into `num_ranks` equal shares that take these times each, in chunks
/// of equal weight.
StepTimes equal_chunks(const ChunkLayout& layout, const ChunkTimes& of_rank_share);

struct Span {
  Duration begin{}, end{};
};

struct RankTimes {
  Duration begin{}, end{};  ///< of its first and last forward or backward
  Duration busy{};          ///< sum of their times

  Duration idle_inside() const { return end - begin - busy; }
};

struct Simulation {
  std::vector<std::vector<Span>> spans;  ///< of each action, in the lists' order
  std::vector<RankTimes> ranks;
  Duration makespan{};          ///< from the first action's begin to the last one's end
  Duration shortest_compute{};  ///< shortest nonzero compute action; 0: none

  /// The time in which a rank doesn't compute, from the step's begin to its end.
  Duration idle(int rank) const { return makespan - ranks[static_cast<std::size_t>(rank)].busy; }
  /// The share of the ranks' time in which they compute nothing.
  double idle_share() const;
};

Simulation simulate(const Schedule& schedule, const StepTimes& times,
                    const Channels& channels = {});

/// The same without storing spans, which take twice the memory of the schedule. `each` is called
/// with them, one by one. A rank's compute actions arrive in its list's order.
using EachSpan = std::function<void(std::size_t rank, std::size_t position, const Span& span)>;
Simulation simulate_each(const Schedule& schedule, const StepTimes& times,
                         const EachSpan& each = {}, const Channels& channels = {});

}  // namespace sherd::schedule
