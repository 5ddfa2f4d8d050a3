/// What a schedule costs, for people: its picture with idle time and peaks, or all schedules in a table.
#pragma once

#include <string>

#include "engine/schedule/generate.h"
#include "engine/schedule/simulate.h"

namespace sherd::schedule {

struct Question {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int chunks_per_rank = 0;              ///< 0: as many as the order takes at least
  ChunkTimes of_rank_share;             ///< of a rank's layers, whatever the number of its chunks
  std::vector<ChunkTimes> of_chunks{};  ///< instead of it, in the model's order
  Duration message{};
  double overlap = 0.0;  ///< of a pair's shorter action, the share that is hidden
};

/// A schedule with its messages, and how long everything takes in it.
struct Answer {
  Schedule schedule;
  StepTimes times;
  Simulation run;  ///< without spans
};

/// Errors   UsageError where the order can't take these numbers, or has another number of chunks.
Answer answer(Order order, const Question& question);

/// Picture, a table of the ranks, and what a step takes.
std::string answer_text(Order order, const Answer& answer);

/// A line per order: what its step takes, or why it can't take these numbers. `chunks_per_rank` is
/// interleaved_1f1b's.
std::string comparison_text(const Question& question);

}  // namespace sherd::schedule
