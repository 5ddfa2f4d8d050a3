// The head without gradients: losses, and logits of tokens for generating and scoring text.

#include "engine/model/transformer.h"
#include "engine/train/units/model_collectives.h"
#include "engine/train/units/unit_runner.h"
#include "kernels/pointwise.h"

namespace sherd::engine {

void UnitRunner::evaluate_head(const model::Pass& pass) {
  if (!has_head_) return;
  const int unit = head_place();
  transformer_->head_evaluate(model::head_parameters(options_.model, parameters_.get(unit)), pass);
  parameters_.release(unit);
}

Tensor UnitRunner::logits(std::int64_t first, std::int64_t count) {
  if (!has_head_) return {};
  const model::ModelShape& shape = transformer_->shape();
  const model::ModelShape::Place token = shape.place_of(first);
  const int unit = head_place();
  Tensor logits = transformer_->logits(
      model::head_parameters(options_.model, parameters_.get(unit)), token.token, count);
  parameters_.release(unit);
  if (shape.part.is_cut()) logits = whole_logits(logits);
  if (shape.context.is_cut()) logits = from_context_rank(logits, token.context_rank);
  return logits;
}

// Each tensor rank has those of its part of the vocabulary; the others' places are zero there.
Tensor UnitRunner::whole_logits(const Tensor& own) {
  const Tensor all = logits_.tensor();
  kernels::fill_zero(rank_.compute(), all);
  rank_.compute().copy(own.data, all.part(transformer_->shape().part.first_token, own.numel).data,
                       own.bytes());
  collectives_->sum("logits", all);
  return all;
}

// Those of the rank that has the token, on every one.
Tensor UnitRunner::from_context_rank(const Tensor& own, int owner) {
  const Tensor all = logits_.tensor();
  if (own.data != all.data) rank_.compute().copy(own.data, all.data, own.bytes());
  collectives_->broadcast_position("logits", all, owner);
  return all;
}

std::int64_t UnitRunner::most_logits() const {
  return has_whole_model_ && !logits_ ? transformer_->most_logits() : 1;
}

}  // namespace sherd::engine
