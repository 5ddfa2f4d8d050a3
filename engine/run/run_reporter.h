/// Reports a run while it trains: printed lines, metrics.jsonl, curves. Only rank 0 has one.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "engine/report/event_file.h"
#include "engine/report/metrics.h"
#include "engine/report/slowest_counts.h"
#include "engine/report/time_left.h"
#include "engine/run/rank_run.h"
#include "engine/trainer/trainer.h"

namespace sherd::engine {

class RunReporter {
 public:
  using Clock = std::chrono::steady_clock;

  RunReporter(const RunContext& context, const sharding::Rank& rank);

  /// Callbacks for the run's saves, which may begin once `begin` has returned.
  SaveEvents save_events();

  /// Opens the files of a run with `first_step` steps done. `evaluates_first`: the evaluation after
  /// them is repeated.
  void begin(std::int64_t first_step, bool evaluates_first, const RunSchedule& schedule);
  /// Prints a line before the first step: the run's progress, or why nothing is trained.
  void say_where_it_begins(bool stops_early, const BestEvaluation& best);

  /// Reports step `step`, counted from 0, after it has been computed.
  /// `skips`: of the data, until then.
  void step(std::int64_t step, const StepResult& result, Clock::duration took,
            const std::vector<data::Skip>& skips);
  void evaluation(std::int64_t steps_done, const EvaluationResult& result, std::int64_t num_passes,
                  Clock::duration took);
  void saving_because(StopRequest stop, std::int64_t steps_done);
  /// A checkpoint was asked for by `source`; `saves`: this run can.
  void save_asked(const std::string& source, std::int64_t steps_done, bool saves);
  /// Call after each step, whether or not it saved a checkpoint.
  void saves_took(std::int64_t steps_done, Clock::duration took);
  void early_end(std::int64_t steps_done, const BestEvaluation& best);
  void sample(std::int64_t steps_done, const std::string& text);
  /// After the last save of the segment. Reports the goodput, unless another segment continues.
  /// Returns when all lines are on disk.
  void end(std::int64_t steps_done, bool continues);

 private:
  StepMetrics metrics_of(std::int64_t step, const StepResult& result, double seconds,
                         const std::vector<data::Skip>& skips) const;
  void show_progress(std::int64_t step, double loss);
  std::int64_t tokens_of(std::int64_t step) const;
  void say(const std::string& text) const { context_.progress.message(text); }

  const RunContext& context_;
  const Recipe& recipe_;
  const sharding::Rank& rank_;
  std::optional<MetricsWriter> metrics_;
  std::optional<EventFile> curves_;
  std::int64_t first_step_ = 0;

  RunSchedule schedule_;
  TimeLeft time_left_;
  Clock::time_point moved_{};
  double exposed_ms_ = 0.0, exposed_disk_ms_ = 0.0, comm_cpu_ms_ = 0.0, busy_seconds_ = 0.0;
  double matmul_peak_ = 0.0;
  std::map<std::string, double> exposed_by_axis_;
  std::int64_t steps_since_report_ = 0, tokens_since_report_ = 0;
};

}  // namespace sherd::engine
