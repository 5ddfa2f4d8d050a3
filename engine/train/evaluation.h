/// The losses on the validation sets, computed by all ranks together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/exact_sum.h"
#include "engine/data/batcher.h"
#include "engine/data/task.h"
#include "engine/preference/answers.h"
#include "engine/train/batch_buffers.h"
#include "engine/train/sharded_model.h"
#include "engine/train/stop_request.h"
#include "sharding/mesh/exchange.h"

namespace sherd::engine {

struct EvaluationResult {
  /// Of the main set: mean over the `num_tokens` tokens that have a target. With a loss on answers:
  /// over that many examples.
  double loss = 0.0;
  std::int64_t num_tokens = 0;
  struct Set {
    std::string name;
    double loss = 0.0;
    std::int64_t num_tokens = 0;
    std::optional<PreferenceReport> preference{};
    std::int64_t num_bytes = 0;  ///< of the text of these tokens; 0: tokens have no text

    /// The loss in units that can be compared across tokenizers; none if tokens have no text.
    std::optional<double> bits_per_byte() const;
  };
  std::vector<Set> sets{};  ///< all of them, in order
  /// Counts over all questions of a task (engine/data/task.h).
  struct Task {
    std::string name;
    std::int64_t num_questions = 0, num_right = 0, num_right_by_bytes = 0;
    std::vector<double> scores{};  ///< log-likelihoods of all choices, in order

    double acc() const { return share(num_right); }
    double acc_norm() const { return share(num_right_by_bytes); }

   private:
    double share(std::int64_t right) const {
      return static_cast<double>(right) / static_cast<double>(num_questions);
    }
  };
  std::vector<Task> tasks{};
  /// nanoGPT's estimate, in addition: 20 batches of windows that start anywhere in the main set.
  /// Set only if `loss` covers the whole set and its documents are joined.
  std::optional<double> loss_20_batches;
  /// Of the average of the weights (TrainingOptions::average), if that was evaluated too.
  std::optional<double> loss_of_average;
  /// Some rank was asked to stop, so all ranks stopped, and the figures above are meaningless.
  StopRequest stop = StopRequest::kNone;
};

/// What ranks exchange, before a pass and at the end.
struct EvaluationShare {
  ExactSum::Numbers loss_sum{};
  double num_tokens = 0.0;
  double num_bytes = 0.0;
  double choice = -1.0;  ///< of a task, that the losses are of; -1: none
  double stop_request = 0.0;
};

/// Everything that an Evaluation acquires: inputs, targets and exchange buffers.
std::vector<BufferSpec> evaluation_buffers(const TrainingOptions& options, int world_size);

class Evaluation {
 public:
  /// `batch_size`: sequences in the batches that run() counts. It is the batch size of a training
  /// step over all ranks, so the evaluated data depend on neither ranks nor micro-batches.
  Evaluation(const TrainingOptions& options, ShardedModel& model, const data::Batcher& batcher,
             std::int64_t batch_size);

  /// The first `num_batches` batches of each set (0: all of it), unless it has a number of its own.
  /// A collective: every rank takes
  /// part and gets the same result. Before each pass the ranks agree to continue unless one was
  /// `asked` to stop; in a pipeline, before each ShardedModel::passes_at_once passes.
  EvaluationResult run(std::int64_t num_batches, const AskedToStop& asked = {});

  /// The loss of the main set alone, without nanoGPT's estimate.
  EvaluationResult run_main(std::int64_t num_batches, const AskedToStop& asked = {});

  /// Scores all choices of the task's questions, none of which is longer than a sequence. A
  /// collective, with the same result on every rank, and on any ranks. `stop` is set as in run().
  /// Passes are as long as the longest choice needs; with separate documents, choices share rows.
  EvaluationResult::Task score(const data::Task& task, const AskedToStop& asked, StopRequest& stop);

  /// With a loss on answers that has a reference: the log-probability of every answer of the data
  /// (data::Batcher::num_documents) under the present weights. A collective, with the same result on
  /// every rank; empty if `stop` is set.
  std::vector<double> reference(const AskedToStop& asked, StopRequest& stop);
  /// Which evaluations compare with, until it is destroyed.
  void set_reference(std::span<const double> reference) { reference_ = reference; }

  /// Forward passes of run(num_batches), including those of nanoGPT's estimate.
  std::int64_t num_passes(std::int64_t num_batches) const;
  std::int64_t num_main_passes(std::int64_t num_batches) const;
  std::int64_t num_task_passes(const data::Task& task) const;

  /// Room for one micro-batch of tokens: [T] i32 each, in kEvaluation.
  const sharding::MirroredBuffer& inputs() const { return batch_.inputs(); }

 private:
  struct Mean {
    double loss = 0.0;
    std::int64_t num_tokens = 0, num_bytes = 0;
    std::optional<PreferenceReport> preference{};
  };
  /// Number of rows of a pass that count, of their tokens that have a target, and of these tokens'
  /// bytes.
  struct Filled {
    std::int64_t rows = 0, targets = 0, bytes = 0;
  };
  /// Passes over rows of `seq_length` tokens. `fill` writes this rank's rows of a pass; `take` may
  /// read their losses. Returns a request to stop, which ends them.
  StopRequest run_passes(std::int64_t num_passes, std::int64_t seq_length,
                         const OwnPositions& positions,
                         const std::function<void(std::int64_t pass)>& fill,
                         const std::function<void(std::int64_t pass)>& take,
                         const AskedToStop& asked);
  /// Adds this rank's token losses; `fill` writes one micro-batch.
  Mean mean_loss(std::int64_t num_passes, const std::function<Filled(std::int64_t pass)>& fill,
                 const AskedToStop& asked, StopRequest& stop);
  Mean mean_of_answers(int set, std::int64_t windows, const AskedToStop& asked, StopRequest& stop);
  void share(const std::vector<Answer>& own, std::vector<double>& scores);
  StopRequest agreed_stop(const AskedToStop& asked);
  bool counts_losses() const { return model_.rank().contributes_tokens() && model_.has_head(); }
  std::int64_t num_windows(int set, std::int64_t num_batches) const;
  std::int64_t num_sampled() const;
  bool samples_too(int set, std::int64_t windows) const;
  std::int64_t passes_over(std::int64_t windows) const;
  std::int64_t first_row(std::int64_t pass, int data_index) const;
  Mean mean_of(int set, std::int64_t windows, const AskedToStop& asked, StopRequest& stop);
  template <class Fill>
  Filled fill_rows(int set, std::int64_t pass, std::int64_t windows, const Fill& fill);
  std::int64_t bytes_of_targets(int set);
  std::vector<ExactSum> add_up(const std::vector<ExactSum>& own,
                               const std::vector<std::vector<std::int64_t>>& choices_of);

  const TrainingOptions& options_;
  ShardedModel& model_;
  const data::Batcher& batcher_;
  std::int64_t batch_size_;
  BatchBuffers batch_;
  sharding::Agreement<EvaluationShare> shares_;
  std::optional<sharding::Exchange> answers_;
  std::span<const double> reference_;
  std::vector<std::vector<std::int64_t>> bytes_of_;  // by set and token; -1: not asked yet
};

}  // namespace sherd::engine
