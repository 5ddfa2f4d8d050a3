/// The loss on whole answers (engine/preference), where a rank has the head.
///
///   head without gradients   losses of all tokens
///   host                     loss and derivatives of each answer, so a weight for each token
///   head with gradients      its tokens' gradients have these weights
///
/// The host waits for the first once per micro-batch, also on a GPU.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/model/pass.h"
#include "engine/preference/answers.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

class AnswerLosses {
 public:
  /// Acquires what `buffers` lists.
  AnswerLosses(const TrainingOptions& options, const sharding::Rank& rank);
  static std::vector<BufferSpec> buffers(const TrainingOptions& options);

  /// The answers in the micro-batch that begins with a row of the step's batch.
  std::function<std::vector<Answer>(std::int64_t first_row)> answers_of;
  /// By Answer::number; empty if the loss has none.
  std::span<const double> reference;

  /// f32 [T] on the device. `losses` are the last pass's.
  ConstTensor weights(const model::Pass& pass, const Tensor& losses);
  /// Adds the last micro-batch's sums to the step's; `first`: the step begins with them.
  void add_up(bool first);
  const AnswerSums& sums() const { return sums_; }

 private:
  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  sharding::MirroredBuffer weights_;
  std::vector<float> losses_;
  std::vector<std::int32_t> targets_;
  AnswerSums of_micro_batch_, sums_;
};

}  // namespace sherd::engine
