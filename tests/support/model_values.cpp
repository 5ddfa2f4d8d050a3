#include "tests/support/model_values.h"

#include <algorithm>

namespace sherd::testing {

void set_parameters(engine::ShardedModel& model, const ValuesByName& values) {
  // At stages 1 and 2 the initial values may still be on their way into the same buffers.
  model.rank().gather().synchronize();
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    const sharding::UnitState& unit = model.units()[u];
    for (const int slice_index : unit.updated_slices()) {
      float* slice = unit.fp32_slice(slice_index).as<float>();
      for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
        const auto& whole = values.at(unit.spec().parameters[piece.parameter].name);
        std::copy_n(whole.begin() + piece.first_element, piece.count, slice + piece.position);
      }
    }
    model.parameters().publish(static_cast<int>(u));
  }
}

void collect_gradients(const engine::ShardedModel& model, ValuesByName& gradients) {
  const int rank = model.rank().rank;
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.trains()) continue;
    const float* slice = unit.gradient(rank).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(rank)) {
      const std::string& name = unit.spec().parameters[piece.parameter].name;
      std::copy_n(slice + piece.position, piece.count,
                  gradients.at(name).begin() + piece.first_element);
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
