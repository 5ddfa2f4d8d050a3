/// A trainer of the library: a prepared run, its folder, and the ranks of the segment that is being
/// trained.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/library/rank_world.h"
#include "engine/report/output_folder.h"
#include "engine/run/prepare.h"
#include "engine/run/run_rules.h"
#include "sherd/trainer.h"

namespace sherd::v0 {

class TrainerParts {
 public:
  /// While a call of this thread lasts. Callbacks may make calls, too.
  /// Errors   UsageError if another thread's call lasts.
  class InUse {
   public:
    explicit InUse(TrainerParts& parts);
    ~InUse();
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    TrainerParts& parts_;
  };

  TrainerParts(const Recipe& recipe, const TrainerOptions& options);
  ~TrainerParts();

  int num_ranks() const { return world_->world_size(); }
  std::int64_t steps_done() const { return now_.steps_done; }
  std::int64_t max_steps() const { return run_->resolved.values.training.max_steps; }
  bool is_done() const { return steps_done() >= max_steps() || stops_early(); }
  bool evaluation_is_due() const;
  std::string newest_checkpoint() const;

  StepMetrics step();
  Evaluation evaluate(std::optional<std::int64_t> num_batches);
  void save_if_due();
  std::string save();
  void finish();
  void train(const TrainCallbacks& callbacks);
  std::string sample(const std::string& prompt, const SampleOptions& options);

 private:
  /// What rank 0 knows after each call.
  struct Now {
    std::int64_t steps_done = 0;
    bool evaluated = false;
    engine::BestEvaluation best{};
    std::int64_t newest_checkpoint = -1;
  };

  const engine::Recipe& recipe() const { return run_->resolved.values; }
  /// Of the next step's segment.
  engine::RunRules rules() const { return {*run_, run_->segment_after(now_.steps_done)}; }
  bool saves() const { return checkpoints_.saves; }
  bool stops_early() const { return rules().stops_early(now_.steps_done, now_.best); }
  void open();
  void start(std::size_t segment);
  void go_to_next_segment();
  void on_ranks(const library::RankWorld::Work& work);
  void deliver_messages();
  void evaluate_if_due(const TrainCallbacks& callbacks);

  std::function<void(const std::string&)> on_message_;
  std::mutex mutex_;
  std::thread::id user_;  // whose calls last
  int num_calls_ = 0;
  std::vector<std::string> messages_;  // of the ranks, until the caller's thread delivers them
  std::shared_ptr<const engine::Machine> machine_;
  std::optional<engine::PreparedRun> run_;
  std::optional<engine::OutputFolder> folder_;  // none if nothing is saved
  engine::CheckpointOptions checkpoints_;
  std::size_t segment_ = 0;
  Now now_;
  bool has_stepped_ = false;                   // since the ranks have loaded
  std::unique_ptr<library::RankWorld> world_;  // last: it uses the others
};

struct Trainer::Parts : TrainerParts {
  using TrainerParts::TrainerParts;
};

}  // namespace sherd::v0
