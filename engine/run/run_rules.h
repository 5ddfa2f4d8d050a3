/// When a run evaluates, saves and ends, as its recipe says: for the program's runs and for a
/// library's trainers.
#pragma once

#include <cstdint>

#include "engine/run/prepare.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {

class RunRules {
 public:
  /// Of one segment of `run`, which must outlive this.
  RunRules(const PreparedRun& run, std::size_t segment) : run_(run), segment_(segment) {}

  const Recipe& recipe() const { return run_.segments[segment_].recipe.values; }
  bool is_last_segment() const { return segment_ + 1 == run_.num_segments(); }
  /// Steps done when the segment ends.
  std::int64_t end_step() const { return run_.segments[segment_].end_step; }

  /// Whether there is anything to evaluate.
  bool validates() const { return run_.batches[segment_]->num_validation_sets() > 0; }
  /// After `steps_done` steps. Between two segments, the later one evaluates.
  bool evaluation_is_due(std::int64_t steps_done) const;
  /// Before the first step of a trainer that begins with `steps_done` steps. If a run was stopped
  /// during an evaluation, the resumed run evaluates, until a checkpoint contains the result.
  bool evaluates_first(std::int64_t steps_done, bool is_evaluated) const;
  /// Batches of the evaluation after `steps_done` steps; 0: the whole sets.
  std::int64_t batches_of_eval(std::int64_t steps_done) const;

  /// Early stopping ends the run. The last step needs no reason to be the last.
  bool stops_early(std::int64_t steps_done, const BestEvaluation& best) const;

 private:
  const PreparedRun& run_;
  std::size_t segment_;
};

}  // namespace sherd::engine
