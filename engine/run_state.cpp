#include "engine/run_state.h"

#include <map>

#include "engine/model/parameters.h"

namespace sherd::engine {
namespace {

constexpr const char* kParam = "param";

using Index = std::map<std::pair<std::uint32_t, std::string>, int>;  // parameter, kind -> tensor

Index index_of(const TrainingOptions& options, const std::vector<sharding::StateTensor>& tensors) {
  std::map<std::string, std::uint32_t> parameters;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      parameters[parameter.name] = parameter.index;
    }
  }
  Index index;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    index[{parameters.at(tensors[i].name), tensors[i].kind}] = static_cast<int>(i);
  }
  return index;
}

void add_weights(const ShardedModel& model, const Index& index, Pieces which,
                 std::vector<sharding::StatePiece>& pieces) {
  for (const sharding::UnitState& unit : model.units()) {
    for (const int owner : unit.updated_slices()) {
      if (which == Pieces::kOwned && owner != model.rank().rank) continue;
      for (const sharding::Piece& piece : unit.layout().pieces(owner)) {
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        pieces.push_back({index.at({parameter.index, kParam}), piece.first_element, piece.count,
                          unit.master(owner).part(piece.position, piece.count)});
      }
    }
  }
}

}  // namespace

std::vector<sharding::StateTensor> state_tensors(const TrainingOptions& options) {
  std::vector<sharding::StateTensor> tensors;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      tensors.push_back({parameter.name, kParam, parameter.shape, DType::kF32});
      for (const std::string& kind : optim::moment_kinds(options.optimizer, unit, parameter)) {
        tensors.push_back({parameter.name, kind, parameter.shape, options.optimizer.moments.dtype});
      }
    }
  }
  return tensors;
}

sharding::State run_state(const TrainingOptions& options, const ShardedModel& model,
                          const TrainingStep& training_step, Pieces pieces) {
  sharding::State state{state_tensors(options), {}};
  const Index index = index_of(options, state.tensors);
  add_weights(model, index, pieces, state.pieces);
  for (const optim::MomentPiece& moment : training_step.optimizer().moments()) {
    if (pieces == Pieces::kOwned && moment.owner != model.rank().rank) continue;
    state.pieces.push_back({index.at({moment.parameter, moment.kind}), moment.first_element,
                            moment.data.numel, moment.data});
  }
  return state;
}

sharding::State weights(const TrainingOptions& options, const ShardedModel& model, Pieces pieces) {
  sharding::State state;
  for (sharding::StateTensor& tensor : state_tensors(options)) {
    if (tensor.kind == kParam) state.tensors.push_back(std::move(tensor));
  }
  add_weights(model, index_of(options, state.tensors), pieces, state.pieces);
  return state;
}

}  // namespace sherd::engine
