/// A training in this process. Its ranks are threads, or GPUs of this machine.
///
///   sherd::Trainer trainer(sherd::Recipe::load("recipes/quickstart.yaml"));
///   while (trainer.steps_done() < trainer.max_steps()) {
///     const sherd::StepMetrics step = trainer.step();
///     if (trainer.evaluation_is_due()) trainer.evaluate();
///     trainer.save_if_due();
///   }
///   trainer.finish();
///
/// `train` is this loop, with what a run of the program does in addition: it ends early if the
/// recipe says so, and the last evaluation may cover the whole validation set.
///
/// Results    Bit-identical to those of `sherd train` with the same recipe: losses, weights and
///            checkpoints. A run may begin in one and continue in the other.
/// Files      Only checkpoints and what belongs to them, in run.output_dir, and only if the recipe
///            saves (checkpoint.interval, on_interrupt or max_minutes). The folder is locked while
///            the trainer exists. The program's other files are left out: metrics.jsonl,
///            tensorboard, traces, samples. The figures are in what the calls return.
/// Refused    Settings that only a program can follow: block hooks, and bad_steps.rewind_after.
///            checkpoint.max_minutes has no effect: the caller decides when to stop.
/// Process    No signal handler is installed, nothing is printed, no global state is changed.
///            The library's threads block signals, so they arrive at threads of the caller.
/// Several    Trainers in one process are independent. Two that save need folders of their own. To
///            use them at once, call each from a thread of its own; run.num_threads divides cores.
/// Threads    Calls of one trainer come from one thread at a time; while one lasts, another thread's
///            get a UsageError. Callbacks come from that thread, and may make calls.
/// Errors     sherd::Error. After an error in `step`, `evaluate` or a save, the trainer can't be
///            used further: each later call reports the same error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/recipe.h"

namespace sherd::SHERD_ABI {

/// Results of a training step, over all ranks.
struct StepMetrics {
  std::int64_t step = 0;   ///< steps done, including this one
  double loss = 0.0;       ///< mean over the step's tokens that have a target
  double grad_norm = 0.0;  ///< before clipping
  double lr = 0.0;
  std::int64_t num_targets = 0;  ///< tokens that the loss is the mean of; 0: nothing was updated
  std::int64_t tokens = 0;       ///< since the start of training
  double seconds = 0.0;          ///< measured
  double exposed_comm_ms = 0.0;  ///< measured: the longest wait of a rank for communication
  bool skipped = false;          ///< the gradient overflowed: no update, a lower loss scale
  double loss_scale = 1.0;
  std::string not_applied{};  ///< why the step's update wasn't applied; empty: it was, or `skipped`
};

/// Losses on the validation sets, and scores of the recipe's tasks.
struct Evaluation {
  std::int64_t step = 0;  ///< steps done
  double loss = 0.0;      ///< of the main set: mean over its tokens that have a target
  std::int64_t num_tokens = 0;
  struct Set {
    std::string name{};
    double loss = 0.0;
    std::int64_t num_tokens = 0;
    std::optional<double> bits_per_byte{};  ///< if the tokens have text
  };
  std::vector<Set> sets{};  ///< all of them, the main one first
  struct Task {
    std::string name{};
    double acc = 0.0, acc_norm = 0.0;
    std::int64_t num_questions = 0;
  };
  std::vector<Task> tasks{};
  std::optional<double> loss_of_average{};  ///< with averages.evaluate
};

/// What `train` reports while it runs. Each may be empty.
struct TrainCallbacks {
  /// After each step. Returning false ends the training: it saves if the recipe does so at Ctrl-C
  /// (checkpoint.on_interrupt), and `train` returns.
  std::function<bool(const StepMetrics&)> on_step{};
  std::function<void(const Evaluation&)> on_evaluation{};
};

struct TrainerOptions {
  /// Sentences for the user, such as which checkpoint was loaded.
  std::function<void(const std::string&)> on_message{};
};

struct SampleOptions {
  std::int64_t num_tokens = 200;
  double temperature = 1.0;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< 0: all tokens
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

class SHERD_API Trainer {
 public:
  /// Checks the recipe, opens the data, starts the ranks, acquires all memory, and loads: the run's
  /// newest checkpoint, a checkpoint or weights that the recipe names (checkpoint.resume,
  /// checkpoint.init_from), or initial values.
  /// Errors   what `sherd train` refuses, before anything is allocated; a locked folder
  explicit Trainer(const Recipe& recipe, const TrainerOptions& options = {});
  /// Waits for a save in progress. Errors of it are lost: call `finish` before.
  ~Trainer();
  Trainer(Trainer&& other) noexcept;
  Trainer& operator=(Trainer&& other) noexcept;

  int num_ranks() const;
  /// Steps of the whole training, including those before this trainer loaded a checkpoint.
  std::int64_t steps_done() const;
  std::int64_t max_steps() const;
  /// Whether all steps are done, or training.early_stopping_patience has ended the training.
  bool is_done() const;

  /// The next step.
  /// Errors   UsageError if all steps are done
  StepMetrics step();

  /// Losses on the first `num_batches` batches of the validation sets. 0: all of them. Without a
  /// number: as many as the recipe's evaluations at this step have.
  Evaluation evaluate();
  Evaluation evaluate(std::int64_t num_batches);
  /// Whether a run of the program evaluates after the steps that are done.
  bool evaluation_is_due() const;

  /// Call it after each step. Begins a save if the recipe's interval says so, and continues a save
  /// in progress while training goes on.
  void save_if_due();
  /// Saves now. Returns the checkpoint's folder when it is complete on disk.
  /// Errors   UsageError if the recipe doesn't save
  std::string save();
  /// Returns when every save is complete on disk.
  void finish();
  /// The folder of the newest checkpoint of this run; "" if there is none yet.
  std::string newest_checkpoint() const;

  /// The rest of the training, with evaluations and saves as the recipe says.
  void train(const TrainCallbacks& callbacks = {});

  /// Text that the model writes after `prompt`, with the weights as they are.
  /// Errors   UsageError for a prompt that the vocabulary can't express
  std::string sample(const std::string& prompt, const SampleOptions& options = {});

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sherd::SHERD_ABI
