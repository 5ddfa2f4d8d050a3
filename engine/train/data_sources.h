/// Opens the texts of a recipe: what it trains on, and its validation sets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/data/task.h"
#include "engine/recipe/segments.h"

namespace sherd::engine {

/// Whether any of the recipe's texts has separate documents.
bool has_separate_documents(const Recipe& recipe);

struct OpenSources {
  bool only_validate = false;          ///< as in data::DataOptions
  std::vector<char32_t> vocabulary{};  ///< as in data::DataOptions
};

/// data.path, or data.sources, with their held-out parts; then data.validation_sets.
/// Errors   DataError as data::open_dataset; a validation set with a file that is trained on
data::BatchSources open_sources(const Recipe& recipe, const OpenSources& how = {});

/// training.tasks, for sequences of `seq_length` tokens; null if there are none.
/// Errors   DataError as data::read_task
std::shared_ptr<const std::vector<data::Task>> open_tasks(const Recipe& recipe,
                                                          std::int64_t seq_length);

/// The batches of each segment of a run, in order.
/// Errors   as open_sources, and as data::Batcher
std::vector<std::shared_ptr<const data::Batcher>> open_batches(
    const std::vector<Segment>& segments);

/// Those of all segments. The shape of a segment counts where it isn't the run's.
std::vector<data::StageFingerprint> fingerprints_of(
    const Recipe& run, const std::vector<std::shared_ptr<const data::Batcher>>& batches);

}  // namespace sherd::engine
