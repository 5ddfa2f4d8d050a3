// The passes of a rank's units. unit_runner_buffers.cpp makes the runner, unit_runner_logits.cpp has
// the head without gradients, and unit_runner_predictions.cpp multi-token prediction.

#include "engine/train/units/unit_runner.h"

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/model/transformer.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/units/answer_losses.h"
#include "engine/train/units/kept_inputs.h"
#include "engine/train/units/model_collectives.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
std::vector<int> UnitRunner::places(const std::vector<UnitId>& uses) const {
  std::vector<int> places;
  for (const UnitId& use : uses) {
    const auto found = places_.find(use);
    SHERD_CHECK(found != places_.end(), "rank {} has no unit {} of layer {}", rank_.rank, use.part,
                use.layer);
    places.push_back(found->second);
  }
  return places;
}

UnitRunner::Layer UnitRunner::layer(int block) const {
  Layer layer;
  layer.places = places(layer_units(options_.model, block));
  layer.parameters.resize(1 + options_.model.layer_parts.size());
  layer.gradients = layer.parameters;
  return layer;
}

void UnitRunner::get(Layer& layer) {
  for (const int unit : layer.places) {
    layer.parameters[static_cast<std::size_t>(part_of(unit))] = parameters_.get(unit);
  }
}

void UnitRunner::open(Layer& layer) {
  for (const int unit : layer.places) {
    layer.gradients[static_cast<std::size_t>(part_of(unit))] = gradients_.open(unit);
  }
}

void UnitRunner::release(const Layer& layer) {
  for (const int unit : layer.places) parameters_.release(unit);
}

void UnitRunner::close(const Layer& layer) {
  for (const int unit : layer.places) gradients_.close(unit);
}

// What a layer's kernels depend on besides shapes that never change: where its parameters,
// gradients and activations are, and the pass. Dropout draws anew at every step, a recomputed
// block's backward depends on what the last forward left, and with a cache each pass begins at
// another position: those are never the same work again.
void UnitRunner::section(const char* label, int block, const Layer& layer, const model::Pass& pass,
                         const std::function<void()>& enqueue) {
  const model::ModelShape& shape = transformer_->shape();
  const bool repeats = (!pass.training || (shape.dropout == 0.0 && shape.adapter.dropout == 0.0)) &&
                       shape.recompute != model::Recompute::kFull && shape.cached_positions == 0;
  if (!repeats || !rank_.compute().keeps_sections()) return enqueue();
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", label, block, pass.training, shape.sequences,
                  shape.seq_length, pass.documents.starts.data, pass.documents.count(),
                  transformer_->residual_TD(block).data, slots_);
  for (const std::vector<Views>* views : {&layer.parameters, &layer.gradients}) {
    // All of them: a unit's views may lie apart, some resident and others in a slot.
    for (const Views& part : *views) {
      key += " -";
      for (const Tensor& view : part) fmt::format_to(std::back_inserter(key), " {}", view.data);
    }
  }
  rank_.compute().section(key, enqueue);
}

void UnitRunner::forward(const Chunk& chunk, const model::Pass& pass,
                         const std::function<void()>& before_output) {
  const model::ModelShape& shape = options_.model;
  if (chunk.embedding) {
    TraceSpan span(rank_.compute(), "forward embedding");
    const int unit = place(embedding_unit());
    if (inputs_) inputs_->before_write(0);
    const model::EmbeddingParameters embedding =
        model::embedding_parameters(shape, parameters_.get(unit));
    transformer_->embed(embedding, pass);
    if (pass.training) transformer_->prediction().embed(embedding, pass);
    parameters_.release(unit);
  }
  for (int block = chunk.first_block; block < chunk.end_block(); ++block) {
    if (before_output && block + 1 == chunk.end_block()) before_output();
    Layer layer = this->layer(block);
    get(layer);
    TraceSpan span(rank_.compute(), "forward " + name_of(layer));
    if (inputs_) inputs_->before_write(block + 1);
    section("forward", block, layer, pass, [&] {
      transformer_->block_forward(block, model::block_parameters(shape, block, layer.parameters),
                                  pass);
    });
    if (inputs_ && pass.training) inputs_->read(block);
    release(layer);
  }
  if (chunk.head && pass.training && shape.mtp_layers > 0) predict(pass);
}

void UnitRunner::backward(const Chunk& chunk, const model::Pass& pass, bool input_alone) {
  // A matrix whose both ends are in this chunk stays open: the embedding's share is still to come.
  const bool joined = tied_ && chunk.embedding && chunk.head && !ends_apart();
  const bool predicts = chunk.head && options_.model.mtp_layers > 0;
  std::function<void()> end_of_head;
  if (chunk.head) end_of_head = head_backward(pass, joined);
  if (chunk.head && !predicts) end_of_head();
  if (inputs_) inputs_->done(chunk.end_block());
  rank_.memory->enter(kBackward);
  if (predicts) {
    predictions_backward(pass);
    end_of_head();
  }
  const int first = first_backward(chunk, options_.model);
  for (int block = chunk.end_block() - 1; block >= first; --block) {
    block_backward(block, pass, input_alone);
  }
  if (chunk.embedding) embedding_backward(pass, joined);
}

// A tied matrix is closed once, after all blocks.
void UnitRunner::receive_gradients(const Chunk& chunk) {
  if (!tied_) gradients_.close(head_place());
  const int first = first_backward(chunk, options_.model);
  for (int block = chunk.end_block() - 1; block >= first; --block) close(layer(block));
  gradients_.close(place(embedding_unit()));
}

std::function<void()> UnitRunner::head_backward(const model::Pass& pass, bool joined) {
  const model::ModelShape& shape = options_.model;
  const auto end = ends_apart() ? sharding::UnitEnd::kHead : sharding::UnitEnd::kUnit;
  const int unit = head_place();
  const Views views = parameters_.get(unit);
  const Views gradients = gradients_.open(unit, end);
  if (tied_ && !joined) zero(model::embedding_parameters(shape, gradients).position_weight);
  TraceSpan span(rank_.compute(), "head and loss");
  model::HeadParameters to = model::head_parameters(shape, gradients);
  to.adds = gradients_.adds(unit);
  const model::HeadParameters head = model::head_parameters(shape, views);
  model::Pass weighed = pass;
  if (answers_) {
    transformer_->head_evaluate(head, pass);
    weighed.token_weights = answers_->weights(pass, transformer_->losses());
  }
  transformer_->head_train(head, to, weighed);
  parameters_.release(unit);
  return [this, &shape, to, unit, end, joined] {
    if (shape.mtp_layers > 0) {
      transformer_->head_finish(model::head_parameters(shape, parameters_.get(unit)), to);
      parameters_.release(unit);
    }
    if (!joined) gradients_.close(unit, end);
  };
}

void UnitRunner::block_backward(int block, const model::Pass& pass, bool input_alone) {
  const model::ModelShape& shape = options_.model;
  Layer layer = this->layer(block);
  get(layer);
  const auto parameters = [&] { return model::block_parameters(shape, block, layer.parameters); };
  if (input_alone) {
    TraceSpan span(rank_.compute(), "input gradient " + name_of(layer));
    transformer_->block_input_gradient(block, parameters(), pass);
    return release(layer);
  }
  open(layer);
  TraceSpan span(rank_.compute(), "backward " + name_of(layer));
  if (inputs_) inputs_->before_read(block);
  section(adds(layer) ? "backward, adding" : "backward", block, layer, pass, [&] {
    transformer_->block_backward(block, parameters(), gradients_of(block, layer), pass);
  });
  if (inputs_) inputs_->done(block);
  release(layer);
  close(layer);
}

void UnitRunner::embedding_backward(const model::Pass& pass, bool joined) {
  const model::ModelShape& shape = options_.model;
  TraceSpan span(rank_.compute(), "backward embedding");
  const int unit = place(embedding_unit());
  const bool adds_to_ends = tied_ && !joined && units_[static_cast<std::size_t>(unit)].trains();
  if (model::trains_embedding(shape) || adds_to_ends) {
    const Views gradients = gradients_.open(unit);
    if (adds_to_ends) {
      const model::Affine final_norm = model::head_parameters(shape, gradients).final_norm;
      zero(final_norm.weight);
      zero(final_norm.bias);
    }
    if (model::trains_embedding(shape)) {
      const bool adds = joined || (!tied_ && gradients_.adds(unit));
      const model::EmbeddingParameters to = model::embedding_parameters(shape, gradients);
      transformer_->embed_backward(to, pass, adds);
      transformer_->prediction().embed_backward(to, pass);
    }
  }
  gradients_.close(unit);
}

bool UnitRunner::adds(const Layer& layer) const {
  return std::ranges::any_of(layer.places, [this](int unit) { return gradients_.adds(unit); });
}

// Experts that ranks divide: each closes the gradient of one rank's micro-batch before that of the
// next.
std::function<model::ExpertGradients()> UnitRunner::next_gradients(int block, Layer& layer) {
  return [this, block, &layer] {
    for (const int unit : layer.places) {
      if (units_[static_cast<std::size_t>(unit)].plan().num_links == 1) continue;
      gradients_.close(unit);
      layer.gradients[static_cast<std::size_t>(part_of(unit))] = gradients_.open(unit);
    }
    const model::BlockParameters opened =
        model::block_parameters(options_.model, block, layer.gradients);
    const model::Affine &up = opened[model::SiteId::kExpertsUp],
                        &down = opened[model::SiteId::kExpertsDown];
    return model::ExpertGradients{up.weight,     down.weight, up.adapters,
                                  down.adapters, up.bias,     down.bias};
  };
}

model::BlockParameters UnitRunner::gradients_of(int block, Layer& layer) {
  model::BlockParameters gradients =
      model::block_parameters(options_.model, block, layer.gradients);
  gradients[model::SiteId::kExpertsUp].next = next_gradients(block, layer);
  for (const model::Site& site : model::block_sites(options_.model, block)) {
    const UnitId unit{UnitRole::kLayer, block, site.part};
    gradients[site.id].adds = site.columns > 0 && gradients_.adds(place(unit));
  }
  return gradients;
}

bool UnitRunner::ends_apart() const {
  return tied_ && has_head_ && units_[static_cast<std::size_t>(head_place())].plan().ends_apart;
}

void UnitRunner::weight_gradients(const Chunk& chunk) {
  const model::ModelShape& shape = options_.model;
  rank_.memory->enter(kBackward);
  for (int block = chunk.end_block() - 1; block >= chunk.first_block; --block) {
    Layer layer = this->layer(block);
    model::BlockParameters parameters;
    const bool normalises = weight_gradients_use_parameters(shape);
    if (normalises) {
      get(layer);
      parameters = model::block_parameters(shape, block, layer.parameters);
    }
    TraceSpan span(rank_.compute(), "weight gradient " + name_of(layer));
    open(layer);
    transformer_->block_weight_gradient(block, parameters, gradients_of(block, layer));
    if (normalises) release(layer);
    close(layer);
  }
}

// What the other end of a pipeline has the gradient of, in a tied unit.
void UnitRunner::zero(const Tensor& gradient) {
  if (gradient) kernels::fill_zero(rank_.compute(), gradient);
}

int UnitRunner::part_of(int unit) const {
  return units_[static_cast<std::size_t>(unit)].spec().id.part;
}

const std::string& UnitRunner::name_of(const Layer& layer) const {
  return units_[static_cast<std::size_t>(layer.places.front())].name();
}

void UnitRunner::add_losses(std::int64_t num_tokens, bool first) {
  if (has_head_) loss_sums_.add(transformer_->losses().part(0, num_tokens), first);
}

void UnitRunner::add_step_losses(const model::Pass& pass, bool first) {
  if (answers_) return answers_->add_up(first);
  const model::ModelShape& shape = transformer_->shape();
  add_losses(shape.tokens(), first);
  if (!has_head_) return;
  loss_sums_.add_by_source(transformer_->losses().part(0, shape.tokens()), pass.first_row,
                           shape.sequences, first);
  if (options_.model.has_further_losses()) {
    loss_sums_.add_further(transformer_->further_losses(), first);
  }
}

ExactSum UnitRunner::step_loss_sum() {
  if (answers_) return answers_->sums()[AnswerSums::kLoss];
  return loss_sum();
}

std::vector<float> UnitRunner::losses(std::int64_t num_tokens) {
  return has_head_ ? loss_sums_.on_host(transformer_->losses().part(0, num_tokens))
                   : std::vector<float>();
}

}  // namespace sherd::engine
