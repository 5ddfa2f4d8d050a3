// Multi-token prediction (engine/model/prediction.h): its blocks are units like those of the model's
// layers.

#include "engine/model/transformer.h"
#include "engine/train/units/unit_runner.h"

namespace sherd::engine {

void UnitRunner::predict(const model::Pass& pass) {
  const model::ModelShape& shape = options_.model;
  model::Prediction& prediction = transformer_->prediction();
  const int head = head_place();
  prediction.begin(model::head_parameters(shape, parameters_.get(head)));
  parameters_.release(head);
  for (std::int64_t index = 0; index < shape.mtp_layers; ++index) {
    const auto block = static_cast<int>(shape.num_layers + index);
    Layer layer = this->layer(block);
    get(layer);
    TraceSpan span(rank_.compute(), "forward " + name_of(layer));
    const model::BlockParameters parameters =
        model::block_parameters(shape, block, layer.parameters);
    prediction.enter(index, parameters);
    transformer_->block_forward(block, parameters, pass);
    prediction.leave(index, parameters);
    release(layer);
  }
}

void UnitRunner::predictions_backward(const model::Pass& pass) {
  const model::ModelShape& shape = options_.model;
  model::Prediction& prediction = transformer_->prediction();
  for (std::int64_t index = shape.mtp_layers; index-- > 0;) {
    const auto block = static_cast<int>(shape.num_layers + index);
    Layer layer = this->layer(block);
    get(layer);
    open(layer);
    TraceSpan span(rank_.compute(), "backward " + name_of(layer));
    const model::BlockParameters parameters =
        model::block_parameters(shape, block, layer.parameters);
    const model::BlockParameters gradients = gradients_of(block, layer);
    prediction.leave_backward(index, parameters, gradients);
    transformer_->block_backward(block, parameters, gradients, pass);
    prediction.enter_backward(index, parameters, gradients);
    release(layer);
    close(layer);
  }
}

}  // namespace sherd::engine
