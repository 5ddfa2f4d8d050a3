#include "engine/train/units/answer_losses.h"

namespace sherd::engine {

std::vector<BufferSpec> AnswerLosses::buffers(const TrainingOptions& options) {
  if (!options.preference.active() || !options.placement.has_gradients) return {};
  return {{"answer_weights", Category::kWorkspace, DType::kF32, options.model.tokens(),
           kLoss | kBackward, Home::kMirrored}};
}

AnswerLosses::AnswerLosses(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options),
      rank_(rank),
      weights_(rank, buffers(options).at(0)),
      losses_(static_cast<std::size_t>(options.model.tokens())),
      targets_(losses_.size()) {}

ConstTensor AnswerLosses::weights(const model::Pass& pass, const Tensor& losses) {
  Stream& compute = rank_.compute();
  compute.copy(losses.data, losses_.data(), losses.bytes());
  compute.copy(pass.targets.data, targets_.data(), pass.targets.bytes());
  compute.synchronize();
  const Tensor host = weights_.host();
  of_micro_batch_ =
      score_answers(options_.preference, answers_of(pass.first_row), losses_, targets_, reference,
                    {host.as<float>(), static_cast<std::size_t>(host.numel)});
  weights_.to_device(compute);
  return weights_.device();
}

void AnswerLosses::add_up(bool first) {
  if (first) sums_ = {};
  sums_.add(of_micro_batch_);
}

}  // namespace sherd::engine
