/// What a step reports of a loss on answers (engine/preference/answers.h), over all ranks.
#pragma once

#include <memory>
#include <optional>

#include "engine/preference/answers.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/exchange.h"

namespace sherd::engine {

class AnswerStatistics {
 public:
  AnswerStatistics(const TrainingOptions& options, const sharding::Rank& rank);
  /// Everything that the constructor acquires; nothing without TrainingOptions::preference.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options, int world_size);
  /// What `combine` sends.
  static sharding::Traffic traffic(const TrainingOptions& options, const sharding::Mesh& mesh);

  bool active() const { return exchange_.has_value(); }
  /// A collective. `own`: of this rank's answers; null: it has none that count.
  std::shared_ptr<const PreferenceReport> combine(const AnswerSums* own);

 private:
  const TrainingOptions& options_;
  std::optional<sharding::Exchange> exchange_;
};

}  // namespace sherd::engine
