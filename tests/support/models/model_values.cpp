#include "tests/support/models/model_values.h"
#include "sharding/zero/parameter_gather.h"

#include <algorithm>

namespace sherd::testing {
namespace {

// Where an element of a rank's part is in the whole tensor.
std::int64_t element_of_whole(const ParameterSpec& parameter, std::int64_t element) {
  return parameter.cut ? parameter.element_of_whole(element) : element;
}

}  // namespace

void set_parameters(engine::ShardedModel& model, const ValuesByName& values) {
  // At stages 1 and 2 the initial values may still be on their way into the same buffers.
  model.rank().gather().synchronize();
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    const sharding::UnitState& unit = model.units()[u];
    for (const int slice_index : unit.updated_slices()) {
      const Tensor slice = unit.fp32_slice(slice_index);
      for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        const auto& whole = values.at(parameter.name);
        std::vector<float> own;
        for (std::int64_t i = piece.first_element; i < piece.first_element + piece.count; ++i) {
          own.push_back(whole[static_cast<std::size_t>(element_of_whole(parameter, i))]);
        }
        const Tensor part = slice.part(piece.position, piece.count);
        model.rank().compute().copy(own.data(), part.data, part.bytes());
        model.rank().compute().synchronize();
      }
    }
    model.parameters().publish(static_cast<int>(u));
  }
}

void collect_gradients(const engine::ShardedModel& model, ValuesByName& gradients) {
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.trains() || !unit.contributes_slice()) continue;  // another rank writes the same
    const Tensor slice = unit.gradient(unit.own_slice());
    SHERD_CHECK(slice.dtype == DType::kF32, "gradients of {}", name_of(slice.dtype));
    for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      std::vector<float>& whole = gradients.at(parameter.name);
      std::vector<float> own(static_cast<std::size_t>(piece.count));
      const Tensor part = slice.part(piece.position, piece.count);
      model.rank().compute().copy(part.data, own.data(), part.bytes());
      model.rank().compute().synchronize();
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::int64_t element = piece.first_element + i;
        if (parameter.cut && !parameter.place_of(element).counts) continue;
        whole[static_cast<std::size_t>(element_of_whole(parameter, element))] =
            own[static_cast<std::size_t>(i)];
      }
    }
  }
}

void compute_gradients(engine::ShardedModel& model, const model::Pass& pass) {
  model.train([&](int) { return pass; });
}

double compute_loss_sum(engine::ShardedModel& model, const model::Pass& pass) {
  model.parameters().plan(model.evaluation_uses());
  model.forward(pass, kEvaluation);
  model.evaluate_head(pass);
  model.add_losses(pass.inputs.numel, true);
  return model.loss_sum().value();
}

}  // namespace sherd::testing
