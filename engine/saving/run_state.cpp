#include "engine/saving/run_state.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/train/units/cut_pieces.h"
#include "optim/slices.h"

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

// Ranks with copies of a slice divide it among themselves.
sharding::Piece saved_part(const sharding::UnitState& unit, const sharding::Piece& piece) {
  const sharding::SliceRange& saved = unit.saved_range();
  const std::int64_t begin = std::max(piece.position, saved.first);
  const std::int64_t end = std::min(piece.position + piece.count, saved.first + saved.count);
  if (begin >= end) return {piece.parameter, piece.first_element, 0, piece.position};
  return {piece.parameter, piece.first_element + begin - piece.position, end - begin, begin};
}

// The same of a moment's piece, which knows its place in the parameter only.
optim::MomentPiece saved_part(const sharding::UnitState& unit, const optim::MomentPiece& moment) {
  const auto found =
      std::ranges::find(unit.spec().parameters, moment.parameter, &ParameterSpec::index);
  const auto parameter = found - unit.spec().parameters.begin();
  const std::int64_t slice_begin = moment.slice_index * unit.layout().slice_numel();
  const std::int64_t position =
      unit.layout().offset(static_cast<int>(parameter)) + moment.first_element - slice_begin;
  const sharding::Piece part = saved_part(
      unit, {static_cast<int>(parameter), moment.first_element, moment.data.numel, position});
  optim::MomentPiece saved = moment;
  saved.first_element = part.first_element;
  saved.data = moment.data.part(part.first_element - moment.first_element, part.count);
  return saved;
}

// What a rank has of a parameter, or of a moment of it, from `first_element` on: of one that is
// cut, a piece for each box.
void add_pieces(const ParameterSpec& parameter, int tensor, std::int64_t first_element,
                const Tensor& data, Pieces which, std::vector<sharding::StatePiece>& pieces) {
  if (!parameter.cut) {
    pieces.push_back({tensor, first_element, data.numel, data});
    return;
  }
  const PiecesFor purpose = which == Pieces::kOwned ? PiecesFor::kSaving : PiecesFor::kLoading;
  for (const CutPiece& piece : pieces_of(*parameter.cut, first_element, data.numel, purpose)) {
    pieces.push_back({tensor, piece.first_element, piece.count,
                      data.part(piece.in_part - first_element, piece.count), piece.band});
  }
}

void add_weights(const ShardedModel& model, const Index& index, Pieces which,
                 std::vector<sharding::StatePiece>& pieces) {
  for (const sharding::UnitState& unit : model.units()) {
    for (const int slice_index : unit.updated_slices()) {
      if (which == Pieces::kOwned && slice_index != unit.own_slice()) continue;
      for (const sharding::Piece& whole : unit.layout().pieces(slice_index)) {
        const sharding::Piece piece = which == Pieces::kOwned ? saved_part(unit, whole) : whole;
        if (piece.count == 0) continue;
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        add_pieces(parameter, index.at({parameter.index, kParam}), piece.first_element,
                   unit.fp32_slice(slice_index).part(piece.position, piece.count), which, pieces);
      }
    }
  }
}

}  // namespace

std::vector<sharding::StateTensor> state_tensors(const TrainingOptions& options) {
  const auto kinds_of = optim::descriptor_of(options.optimizer.type).moment_kinds;
  std::vector<sharding::StateTensor> tensors;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!model::is_trained(options.model, parameter.name)) continue;
      tensors.push_back({parameter.name, kParam, parameter.shape, DType::kF32});
      for (const std::string& kind : kinds_of(options.optimizer, unit, parameter)) {
        tensors.push_back(
            {parameter.name, kind, parameter.shape, options.optimizer.moment_type.dtype});
      }
      if (options.average.active()) {
        tensors.push_back({parameter.name, optim::kAverageKind, parameter.shape, DType::kF32});
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
  std::map<std::uint32_t, const sharding::UnitState*> unit_of;  // by parameter
  for (const sharding::UnitState& unit : model.units()) {
    for (const ParameterSpec& parameter : unit.spec().parameters) unit_of[parameter.index] = &unit;
  }
  std::vector<optim::MomentPiece> moments = training_step.optimizer().moment_pieces();
  if (const optim::WeightAverage* const average = training_step.average()) {
    std::ranges::move(average->pieces(), std::back_inserter(moments));
  }
  for (optim::MomentPiece& moment : moments) {
    const sharding::UnitState& unit = *unit_of.at(moment.parameter);
    if (pieces == Pieces::kOwned) {
      if (moment.slice_index != unit.own_slice()) continue;
      moment = saved_part(unit, moment);
      if (moment.data.numel == 0) continue;
    }
    add_pieces(optim::parameter_at(unit.spec(), moment.parameter),
               index.at({moment.parameter, moment.kind}), moment.first_element, moment.data, pieces,
               state.pieces);
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
