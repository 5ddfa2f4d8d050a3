#include "engine/run/run_rules.h"

namespace sherd::engine {

bool RunRules::evaluation_is_due(std::int64_t steps_done) const {
  if (!is_last_segment() && steps_done == end_step()) return false;
  const Recipe::Training& training = recipe().training;
  const bool is_last = steps_done == training.max_steps;
  const bool at_interval = training.eval_interval > 0 && steps_done % training.eval_interval == 0;
  return (is_last || at_interval) && validates();
}

bool RunRules::evaluates_first(std::int64_t steps_done, bool is_evaluated) const {
  return steps_done > 0 ? !is_evaluated && evaluation_is_due(steps_done)
                        : recipe().training.eval_at_start && validates();
}

std::int64_t RunRules::batches_of_eval(std::int64_t steps_done) const {
  const Recipe::Training& training = recipe().training;
  const bool is_whole =
      steps_done == training.max_steps && training.final_eval == FinalEval::kWhole;
  return is_whole ? 0 : training.eval_batches;
}

bool RunRules::stops_early(std::int64_t steps_done, const BestEvaluation& best) const {
  const std::int64_t patience = recipe().training.early_stopping_patience;
  return patience > 0 && best.evaluations_since >= patience &&
         steps_done < recipe().training.max_steps;
}

}  // namespace sherd::engine
