/// Which tokens every rank sees at every step: a pure function, so a run resumes from one integer
/// and the order of the data doesn't depend on the number of ranks.
///
///   sequence  sequences.h says what a source's sequences are, and in which order they are used
///   source    of several sources, mixture.h says which one each sequence is of. Source i > 0 draws
///             its order from a seed of its own.
///   balance   if documents of any of several sources are separate, the rows of a step are put into
///             the order of balance.h, by the work of their attention. It follows from the sizes of
///             micro-batches and replicas, not from the number of ranks.
///   segment   a batcher has the steps of one shape, from `begin.first_step` on. If its sequences are
///             longer or shorter than those of the steps before, the sources are cut again, from
///             seeds of their own.
///   stage     a stage begins a mixture of its own, at the step that follows the previous stage's.
///             In it, each source continues where the previous stages left it.
///   end       with num_epochs E, samples are 0 .. E * W - 1, of W sequences in an epoch. If they
///             don't fill the last step, its remaining rows are padding without targets. Later
///             steps have the next epochs' samples. Not for several sources.
///   row       row i of a micro-batch is row first_row + i of the global batch. The global batch is
///             divided into contiguous parts: by replica, then by micro-step, then by rank:
///             first_row = ((replica * num_micro_steps + micro_step) * ranks of a replica
///                          + rank in it) * micro_batch_size;  sample = step * global_batch_size + row
///
/// Immutable; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/balance.h"
#include "engine/data/batch.h"
#include "engine/data/dataset.h"
#include "engine/data/mixture.h"
#include "engine/data/sequences.h"
#include "engine/data/skips.h"

namespace sherd::data {

struct BatchShape {
  std::int64_t seq_length = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t num_micro_steps = 1;
  int world = 1;
  int num_replicas = 1;  ///< each has a contiguous part of the batch
  std::uint64_t seed = 0;
  Packing packing = Packing::kBestFit;  ///< of separate documents
  std::int64_t num_epochs = 0;          ///< samples end after these epochs; 0: they never end
  StepParts ordered{0, 0};              ///< rows are in the order of these parts; 0: of its own

  std::int64_t global_batch_size() const { return micro_batch_size * num_micro_steps * world; }
  std::int64_t tokens_per_step() const { return global_batch_size() * seq_length; }
  StepParts parts() const {
    return ordered.micro_batch_size > 0 ? ordered : StepParts{micro_batch_size, num_replicas};
  }
  /// The first row of the global batch that belongs to `rank` in this micro-step.
  std::int64_t first_row(std::int64_t micro_step, int rank) const {
    const int of_replica = world / num_replicas;
    const std::int64_t before = rank / of_replica * num_micro_steps + micro_step;
    return (before * of_replica + rank % of_replica) * micro_batch_size;
  }
};

/// A text that is trained on. Several are mixed.
struct Source {
  std::string name;
  std::shared_ptr<const Dataset> dataset;
  double weight = 1;
  double max_epochs = 0;  ///< 0: any number
};
/// From the previous stage's last step on.
struct Stage {
  std::int64_t num_steps = 0;     ///< 0: to the end
  std::vector<double> weights{};  ///< of all sources; empty: their own
};
/// The validation split of a dataset.
struct ValidationSource {
  std::string name;
  std::shared_ptr<const Dataset> dataset;
  std::int64_t num_batches = -1;  ///< of an evaluation; -1: as many as evaluations have
};
/// What the steps before a batcher's first one have used.
struct SegmentBegin {
  std::int64_t first_step = 0;
  std::int64_t cut = 0;                 ///< 0: as in the first step of the run
  std::int64_t tokens = 0;              ///< of all sources
  std::vector<std::int64_t> used{};     ///< sequences of each source, in this cut; empty: none
  std::vector<std::int64_t> earlier{};  ///< tokens of each source, in all cuts; empty: none
};
struct BatchSources {
  std::vector<Source> training;
  std::vector<Stage> stages{};  ///< empty: one
  SegmentBegin begin{};
  std::vector<ValidationSource> validation{};
  int main_validation = 0;  ///< whose loss is the run's
};

/// Of the samples from a step on.
struct StageFingerprint {
  std::int64_t first_step = 0;
  std::uint64_t hash = 0;
};

class Batcher {
 public:
  /// All datasets have the shape's seq_length. Validation sets without a sequence are left out.
  /// Errors   DataError if a source's weight gives it no sequence
  Batcher(BatchSources sources, BatchShape shape);
  /// One source, and its own validation split.
  Batcher(const std::shared_ptr<const Dataset>& dataset, BatchShape shape);

  const BatchShape& shape() const { return shape_; }
  const SegmentBegin& begin() const { return begin_; }
  /// The number of the first step that it has.
  std::int64_t first_step() const { return begin_.first_step; }
  /// Where a batcher of the steps from `step` on begins. `cut`: the number of its cut.
  SegmentBegin end_at(std::int64_t step, std::int64_t cut) const;
  /// Of the first source: its text is that of all.
  const Dataset& dataset() const { return *sources_[0].dataset; }

  /// Shapes   batch.h; document tensors if any source's documents are separate
  /// Rows     without a sample hold arbitrary tokens and no targets
  /// Errors   DataError from reading (TokenFile::read)
  void fill(std::int64_t step, std::int64_t micro_step, int rank, const Batch& batch) const;

  /// Tokens of a step, over all ranks and micro-steps, that have a target.
  std::int64_t num_targets(std::int64_t step) const;
  /// Those that multi-token prediction has `ahead` tokens further.
  std::int64_t num_targets_ahead(std::int64_t step, std::int64_t ahead) const;
  /// Those of one of equal contiguous parts of the step's rows: `part` of `num_parts`.
  std::int64_t num_targets(std::int64_t step, int part, int num_parts) const;
  std::vector<std::int64_t> num_targets_of_sources(std::int64_t step) const;

  /// Pairs of answers, or labelled answers, if the data has such examples.
  ExampleKind examples() const { return dataset().examples(); }
  /// Of a step, over all ranks and micro-steps; of validation windows.
  std::int64_t num_examples(std::int64_t step) const;
  std::int64_t num_validation_examples(std::int64_t first_window, std::int64_t count,
                                       int set = 0) const;
  /// The documents of a row of a step's batch, and of a validation window. Their numbers count on
  /// over the sources, and then over the validation sets. A row of padding has none.
  std::vector<RowDocument> documents_of_row(std::int64_t step, std::int64_t row) const;
  std::vector<RowDocument> documents_of_window(std::int64_t window, int set = 0) const;
  std::int64_t num_documents() const;
  /// Rows that have each of these documents once.
  std::int64_t num_example_rows() const;
  std::vector<RowDocument> documents_of_example_row(std::int64_t row) const;
  /// Writes rows [first, first + count) of them as the first rows of the batch.
  void fill_example_rows(std::int64_t first, std::int64_t count, const Batch& batch) const;

  int num_sources() const { return static_cast<int>(sources_.size()); }
  const Source& source(int index) const { return sources_[static_cast<std::size_t>(index)]; }
  const Sequences& training(int source = 0) const {
    return training_[static_cast<std::size_t>(source)];
  }
  /// Sequences of the source in one epoch of it.
  std::int64_t num_windows(int source = 0) const { return training(source).count(); }
  /// Sequences of the source in this cut, in the first `num_steps` steps of the run.
  std::int64_t num_used(int source, std::int64_t num_steps) const;
  /// Tokens of the source in the first `num_steps` steps of the run, and of all sources.
  std::int64_t tokens_of(int source, std::int64_t num_steps) const;
  /// The same of a run that has done `num_steps` steps and skipped data.
  std::int64_t tokens_of(int source, std::int64_t num_steps, const std::vector<Skip>& skips) const;
  std::int64_t num_tokens(std::int64_t num_steps) const;
  /// Steps in num_epochs; the last may have fewer samples. 0 without num_epochs.
  std::int64_t num_steps() const;
  /// Samples of the first `num_steps` steps, if all had this shape. Steps after num_epochs, of runs
  /// that skip data, have those of the next epoch.
  std::int64_t num_samples(std::int64_t num_steps) const;
  /// The source and number of a sample.
  Mixture::Place place_of(std::int64_t sample) const;

  /// The work of attention of each row of a step: the sum of its documents' squared lengths.
  std::vector<std::int64_t> costs_of_rows(std::int64_t step) const;
  /// Whether rows of a step are in the order of balance.h.
  bool balances() const { return balances_; }
  /// Of `num_steps` steps from `first_step` on: the work of attention that a step waits for, over
  /// the mean work of a rank (balance.h).
  double imbalance(std::int64_t first_step, std::int64_t num_steps) const;

  struct StageMixture {
    std::int64_t first_step = 0;
    Mixture mixture;
    std::vector<std::int64_t> used{};  ///< by earlier stages, of each source
  };
  const std::vector<StageMixture>& stages() const { return stages_; }

  /// Validation sets, in order; one of them is the main one.
  int num_validation_sets() const { return static_cast<int>(validation_.size()); }
  int main_validation() const { return main_validation_; }
  const ValidationSource& validation_source(int set) const {
    return validation_sources_[static_cast<std::size_t>(set)];
  }
  /// Sequences of a set, in order. Without sets: 0.
  std::int64_t num_validation_windows(int set = 0) const;
  /// Writes windows [first_window, first_window + count) as the first rows of the batch. The other
  /// rows hold arbitrary tokens and no targets.
  void fill_validation(std::int64_t first_window, std::int64_t count, const Batch& batch,
                       int set = 0) const;
  /// Tokens of these windows that have a target.
  std::int64_t num_validation_targets(std::int64_t first_window, std::int64_t count,
                                      int set = 0) const;
  /// Windows that may start at any token of the validation split, in batches of `batch_size`, as in
  /// nanoGPT's estimate. Window i is drawn by (seed, i / batch_size, i % batch_size), so it doesn't
  /// depend on the rank or on the number of ranks. Not for separate documents.
  /// Shapes   as fill_validation
  void fill_validation_sample(std::int64_t batch_size, std::int64_t first, std::int64_t count,
                              const Batch& batch, int set = 0) const;

  /// Text for users about separate documents: how many there are, in how many rows, how full the
  /// rows are, and the fraction of tokens with a target. "" if documents aren't separate.
  std::string summary() const;

  /// Detects changed data on resume: for each stage, its first step, and a hash of what its samples
  /// are. One source in one stage has its dataset's fingerprint.
  std::vector<StageFingerprint> fingerprints() const;

  Sequences::Place training_place(std::int64_t sample) const;
  Sequences::Place validation_place(std::int64_t window) const {
    return validation_[0].place(window);
  }

 private:
  void make_stages(const std::vector<Stage>& stages);
  const Sequences& split(std::size_t index) const;
  std::vector<RowDocument> numbered(std::size_t split, std::int64_t row) const;
  std::pair<std::size_t, std::int64_t> place_of_example_row(std::int64_t row) const;
  std::int64_t end_of(std::int64_t step) const;
  const StageMixture& stage_of(std::int64_t sample) const;
  Mixture::Place place_in_mixture(std::int64_t sample) const;
  std::int64_t cost_of(const Mixture::Place& place) const;
  using StepOrder = std::shared_ptr<const std::vector<std::int32_t>>;
  StepOrder order_of(std::int64_t step) const;
  std::int64_t waited_work(std::span<const std::int64_t> costs) const;
  const Sequences& validation(int set, std::int64_t first_window) const;

  std::vector<Source> sources_;
  std::vector<ValidationSource> validation_sources_;
  int main_validation_ = 0;
  BatchShape shape_;
  SegmentBegin begin_;
  std::vector<Sequences> training_, validation_;
  std::vector<StageMixture> stages_;
  bool balances_ = false;
  /// Orders of the last steps that were asked for: step s at s % size.
  struct Orders {
    std::mutex mutex;
    std::array<std::pair<std::int64_t, StepOrder>, 4> of_steps{};
  };
  std::unique_ptr<Orders> orders_ = std::make_unique<Orders>();
};

}  // namespace sherd::data
