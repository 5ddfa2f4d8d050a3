/// The items of a recipe's lists of blocks. engine/recipe/items.h has their keys.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::engine {

/// An item of data.sources: texts that are mixed by weight. Empty texts follow the block's key.
struct DataSource {
  std::string name;  ///< empty: from the path
  std::string path;
  double weight = 1;
  std::string format, field, documents;
  double max_epochs = 0;  ///< 0: no limit
  bool operator==(const DataSource&) const = default;
};

/// An item of data.stages: how long one mixture or one shape of batches lasts.
struct DataStage {
  std::int64_t steps = 0, tokens = 0;  ///< one of them or epochs; all 0: the rest of the run
  double epochs = 0;                   ///< of the source that `epochs_of` names, or the only one
  std::string epochs_of;
  std::vector<double> weights;  ///< one for each source; empty: their own
  /// Of its steps; 0: as in `training`.
  std::int64_t seq_length = 0, global_batch_size = 0, micro_batch_size = 0;
  bool operator==(const DataStage&) const = default;
};

/// An item of data.validation_sets. Empty texts follow the block's key.
struct ValidationSet {
  std::string name;  ///< empty: from the path
  std::string path;
  std::string format, field, documents;
  std::int64_t batches = -1;  ///< -1: training.eval_batches; 0: all
  bool operator==(const ValidationSet&) const = default;
};

/// An item of training.tasks: questions with choices, as token ids.
struct TaskFile {
  std::string name;  ///< empty: from the path
  std::string path;
  bool operator==(const TaskFile&) const = default;
};

/// An item of optimizer.groups: parameters that are updated differently. The first group that has a
/// pattern for a parameter decides.
struct ParameterGroup {
  std::vector<std::string> parameters;  ///< patterns of names
  double lr_factor = 1;
  std::optional<double> weight_decay{};
  std::optional<std::array<double, 2>> betas{};
  std::optional<double> eps{};
  bool frozen = false;    ///< not trained
  std::string optimizer;  ///< "adamw" where muon is the optimizer; empty: the run's
  bool operator==(const ParameterGroup&) const = default;
};

}  // namespace sherd::engine
