/// Readable reports of a schedule's cost: its picture with idle time and peaks, or all schedules in
/// a table.
#pragma once

#include <string>

#include "engine/schedule/generate.h"
#include "engine/schedule/simulate.h"

namespace sherd::schedule {

struct Question {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int chunks_per_rank = 0;              ///< 0: the least that the order allows
  ChunkTimes of_rank_share;             ///< of a rank's layers, for any number of chunks
  std::vector<ChunkTimes> of_chunks{};  ///< overrides of_rank_share, in the model's order
  Duration message{};
  double overlap = 0.0;  ///< hidden share of a pair's shorter action
};

/// A schedule with its messages, and its simulated times.
struct Answer {
  Schedule schedule;
  StepTimes times;
  Simulation run;  ///< without spans
};

/// Errors   UsageError if the order doesn't allow these numbers, or has another number of chunks.
Answer answer(Order order, const Question& question);

/// Picture, a table of the ranks, and the time of a step.
std::string answer_text(Order order, const Answer& answer);

/// One line per order: the time of its step, or why it doesn't allow these numbers.
/// `chunks_per_rank` applies to interleaved_1f1b.
std::string comparison_text(const Question& question);

}  // namespace sherd::schedule
