#include "engine/saving/run_state.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/train/units/cut_pieces.h"
#include "optim/average.h"
#include "optim/compressed_sum.h"
#include "optim/eight_bits.h"
#include "optim/low_rank_sum.h"
#include "optim/moment_kinds.h"
#include "optim/outer_update.h"
#include "optim/slices.h"

namespace sherd::engine {
namespace {

constexpr const char* kParam = "param";
constexpr const char* kReplicaPrefix = "replica.";
constexpr const char* kPublished = "published";  // by owners that publish late

// What only replica `replica` has of a parameter; of replica 0 under the parameter's own name.
std::string name_in_replica(const std::string& parameter, int replica) {
  return replica == 0 ? parameter : fmt::format("{}{}.{}", kReplicaPrefix, replica, parameter);
}

// The tensors of replica `replica`, or of all: parameter, kind -> tensor.
using Index = std::map<std::pair<std::uint32_t, std::string>, int>;

Index index_of(const TrainingOptions& options, const std::vector<sharding::StateTensor>& tensors,
               int replica = 0) {
  std::map<std::string, std::uint32_t> parameters;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      parameters[name_in_replica(parameter.name, replica)] = parameter.index;
    }
  }
  Index index;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = parameters.find(tensors[i].name);
    if (found != parameters.end()) index[{found->second, tensors[i].kind}] = static_cast<int>(i);
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

// Consecutive elements of a parameter in this rank's memory. A number of `data` is of `per`
// elements, of which it has the first.
struct Elements {
  std::int64_t first = 0, count = 0;
  Tensor data;
  std::int64_t per = 1;

  // Whole numbers: [begin, begin + size) is where blocks begin and end.
  Elements part(std::int64_t begin, std::int64_t size) const {
    SHERD_CHECK((begin - first) % per == 0 && (size % per == 0 || begin + size == first + count),
                "elements [{}, +{}) of [{}, +{}) cut a block of {}", begin, size, first, count,
                per);
    return {begin, size, data.part((begin - first) / per, (size + per - 1) / per), per};
  }
};

Elements elements_of(const optim::MomentPiece& moment, const ParameterSpec& parameter,
                     std::int64_t per) {
  const std::int64_t first = moment.first_element * per;
  return {first, std::min(moment.data.numel * per, parameter.numel() - first), moment.data, per};
}

// What this rank saves of a moment's piece, which knows its place in the parameter only.
Elements saved_part(const sharding::UnitState& unit, const optim::MomentPiece& moment,
                    const Elements& elements) {
  const auto found =
      std::ranges::find(unit.spec().parameters, moment.parameter, &ParameterSpec::index);
  const auto parameter = static_cast<int>(found - unit.spec().parameters.begin());
  const std::int64_t position = unit.layout().offset(parameter) + elements.first -
                                moment.slice_index * unit.layout().slice_numel();
  const sharding::Piece part =
      saved_part(unit, {parameter, elements.first, elements.count, position});
  if (part.count == 0) return {};
  return elements.part(part.first_element, part.count);
}

// What a rank has of a parameter, or of a moment of it: of one that is cut, a piece for each box.
void add_pieces(const ParameterSpec& parameter, int tensor, const Elements& elements, Pieces which,
                std::vector<sharding::StatePiece>& pieces) {
  const std::int64_t per = elements.per;
  if (!parameter.cut) {
    pieces.push_back({tensor, elements.first / per, elements.data.numel, elements.data});
    return;
  }
  const PiecesFor purpose = which == Pieces::kOwned ? PiecesFor::kSaving : PiecesFor::kLoading;
  for (const CutPiece& piece : pieces_of(*parameter.cut, elements.first, elements.count, purpose)) {
    const Tensor data = elements.part(piece.in_part, piece.count).data;
    pieces.push_back({tensor,
                      piece.first_element / per,
                      data.numel,
                      data,
                      {piece.band.first / per, piece.band.columns / per}});
  }
}

void add_weights(const ShardedModel& model, const Index& index, const char* kind, Pieces which,
                 std::vector<sharding::StatePiece>& pieces) {
  for (const sharding::UnitState& unit : model.units()) {
    for (const int slice_index : unit.updated_slices()) {
      if (which == Pieces::kOwned && slice_index != unit.own_slice()) continue;
      for (const sharding::Piece& whole : unit.layout().pieces(slice_index)) {
        const sharding::Piece piece = which == Pieces::kOwned ? saved_part(unit, whole) : whole;
        if (piece.count == 0) continue;
        const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
        const Elements elements = {piece.first_element, piece.count,
                                   unit.fp32_slice(slice_index).part(piece.position, piece.count)};
        add_pieces(parameter, index.at({parameter.index, kind}), elements, which, pieces);
      }
    }
  }
}

// Frozen parameters are saved from where they rest, as their average too. They are loaded
// separately (base_model.h).
void add_frozen(const TrainingOptions& options, const ShardedModel& model, const Index& index,
                std::vector<sharding::StatePiece>& pieces) {
  if (!saves_frozen(options)) return;
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.plan().has_frozen() || !unit.contributes_frozen()) continue;
    const Tensor slice = unit.frozen_slice(unit.own_part());
    for (const sharding::Piece& piece : unit.plan().frozen_layout.pieces(unit.own_part())) {
      const ParameterSpec& parameter =
          unit.plan().frozen[static_cast<std::size_t>(piece.parameter)];
      const Elements elements = {piece.first_element, piece.count,
                                 slice.part(piece.position, piece.count)};
      for (const char* kind : {kParam, optim::kAverageKind}) {
        const auto tensor = index.find({parameter.index, kind});
        if (tensor == index.end()) continue;
        add_pieces(parameter, tensor->second, elements, Pieces::kOwned, pieces);
      }
    }
  }
}

// What workers have of an owner's slice.
void add_published(const ShardedModel& model, const Index& index,
                   std::vector<sharding::StatePiece>& pieces) {
  for (const sharding::UnitState& unit : model.units()) {
    const Tensor slice = unit.published();
    if (!slice) continue;
    for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const Elements elements = {piece.first_element, piece.count,
                                 slice.part(piece.position, piece.count)};
      add_pieces(parameter, index.at({parameter.index, kPublished}), elements, Pieces::kOwned,
                 pieces);
    }
  }
}

}  // namespace

namespace {

void add_kinds(const std::vector<optim::SumKind>& kinds, const std::string& name,
               std::vector<sharding::StateTensor>& tensors) {
  for (const optim::SumKind& kind : kinds) {
    tensors.push_back({name, kind.kind, kind.shape, DType::kF32});
  }
}

}  // namespace

bool saves_frozen(const TrainingOptions& options) {
  return !options.model.frozen.empty();
}

std::int64_t manifest_values(const TrainingOptions& options, std::int64_t num_ranks,
                             std::int64_t pipeline_ranks) {
  std::map<std::string, std::int64_t> elements;  // by kind
  for (const sharding::StateTensor& tensor : state_tensors(options)) {
    if (!optim::is_factor(tensor.kind)) elements[tensor.kind] += tensor.numel();
  }
  // An array of four numbers for each piece; a piece for each layer, kind and rank.
  constexpr std::int64_t kOfAPiece = 5, kOfADataset = 7, kOfAShard = 5;
  const std::int64_t layers = options.model.num_layers / pipeline_ranks;
  std::int64_t values = kOfAShard * num_ranks;
  for (const auto& [kind, numel] : elements) {
    values += std::min(numel, num_ranks) * kOfADataset;
    values += std::min(numel, num_ranks * layers) * kOfAPiece;
  }
  return values;
}

std::vector<sharding::StateTensor> state_tensors(const TrainingOptions& options, int replicas) {
  const auto kinds_of = optim::descriptor_of(options.optimizer.type).moment_kinds;
  const bool apart = options.local_updates.active();
  const optim::Compression* const compression = options.compression.get();
  if (replicas == 0 && apart) replicas = options.local_updates.num_replicas;
  if (replicas == 0 && compression != nullptr) replicas = compression->num_replicas;
  replicas = std::max(replicas, 1);
  std::vector<sharding::StateTensor> tensors;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool trained = model::is_trained(options.model, parameter.name);
      if (!trained && !saves_frozen(options)) continue;
      tensors.push_back({parameter.name, kParam, parameter.shape, DType::kF32});
      if (trained && apart && options.local_updates.outer_momentum > 0.0) {
        tensors.push_back(
            {parameter.name, optim::kOuterMomentumKind, parameter.shape, DType::kF32});
      }
      if (trained && compression != nullptr) {
        add_kinds(optim::CompressedSum::shared_kinds(*compression, unit, parameter), parameter.name,
                  tensors);
      }
      for (int replica = 0; trained && replica < replicas; ++replica) {
        const std::string name = name_in_replica(parameter.name, replica);
        if (compression != nullptr) {
          add_kinds(optim::CompressedSum::own_kinds(*compression, unit, parameter), name, tensors);
          if (replica > 0) continue;
        }
        if (apart) tensors.push_back({name, optim::kLocalKind, parameter.shape, DType::kF32});
        for (const std::string& kind : kinds_of(options.optimizer, unit, parameter)) {
          tensors.push_back({name, kind, optim::shape_of_kind(kind, options.optimizer, parameter),
                             optim::form_of(kind, options.optimizer.moment_type).dtype});
        }
      }
      if (trained && options.placement.published_late) {
        tensors.push_back({parameter.name, kPublished, parameter.shape,
                           options.sharding_of(unit.id).precision.parameters});
      }
      if (options.average.active()) {
        tensors.push_back({parameter.name, optim::kAverageKind, parameter.shape, DType::kF32});
      }
    }
  }
  return tensors;
}

// The last replica that has tensors under its number.
int replicas_of(const std::vector<sharding::StateTensor>& tensors) {
  int replicas = 1;
  for (const sharding::StateTensor& tensor : tensors) {
    if (!tensor.name.starts_with(kReplicaPrefix)) continue;
    const char* const number = tensor.name.c_str() + std::string_view(kReplicaPrefix).size();
    const std::int64_t replica = std::strtoll(number, nullptr, 10);
    if (replica < 0 || replica >= std::ssize(tensors)) {
      throw DataError("a tensor is of replica {} of {} tensors", replica, std::ssize(tensors));
    }
    replicas = std::max(replicas, static_cast<int>(replica) + 1);
  }
  return replicas;
}

// A list for as many replicas as a file says could take all memory.
int replicas_saved(const TrainingOptions& options,
                   const std::vector<sharding::StateTensor>& tensors) {
  if (!replicas_have_state(options)) return 0;
  const int replicas = replicas_of(tensors);
  const auto of_one = std::ssize(state_tensors(options, 1));
  const auto of_each = std::ssize(state_tensors(options, 2)) - of_one;
  return std::ssize(tensors) == of_one + (replicas - 1) * of_each ? replicas : 0;
}

bool replicas_have_state(const TrainingOptions& options) {
  return options.local_updates.active() || options.compression != nullptr;
}

namespace {

// Every rank has all of them; one saves them.
bool saves_factors(const sharding::Rank& rank, const sharding::UnitState& unit) {
  return unit.contributes_slice() && unit.own_slice() == 0 &&
         rank.mesh.coordinate(rank.rank, sharding::kTensorAxis) == 0;
}

// The pieces of moments, or of other state that is a range of each parameter.
void add_moments(const TrainingOptions& options, const ShardedModel& model,
                 const std::vector<optim::MomentPiece>& moments, const Index& index, Pieces which,
                 std::vector<sharding::StatePiece>& pieces) {
  std::map<std::uint32_t, const sharding::UnitState*> unit_of;  // by parameter
  for (const sharding::UnitState& unit : model.units()) {
    for (const ParameterSpec& parameter : unit.spec().parameters) unit_of[parameter.index] = &unit;
  }
  for (const optim::MomentPiece& moment : moments) {
    const sharding::UnitState& unit = *unit_of.at(moment.parameter);
    const ParameterSpec& parameter = optim::parameter_at(unit.spec(), moment.parameter);
    if (optim::is_factor(moment.kind)) {
      if (which == Pieces::kOwned && !saves_factors(model.rank(), unit)) continue;
      pieces.push_back({index.at({moment.parameter, moment.kind}), moment.first_element,
                        moment.data.numel, moment.data});
      continue;
    }
    Elements elements = elements_of(
        moment, parameter, optim::form_of(moment.kind, options.optimizer.moment_type).elements);
    if (which == Pieces::kOwned) {
      if (moment.slice_index != unit.own_slice()) continue;
      elements = saved_part(unit, moment, elements);
      if (elements.count == 0) continue;
    }
    add_pieces(parameter, index.at({moment.parameter, moment.kind}), elements, which, pieces);
  }
}

// Each replica saves its own pieces whole. Of those that all have, numbers that every rank has are
// saved by one, others as moments are.
void add_compression(const TrainingOptions& options, const ShardedModel& model, Pieces which,
                     sharding::State& state) {
  const optim::CompressedSum* const sum = model.compressed_sum();
  if (sum == nullptr) return;
  if (replicas_of(state.tensors) == options.compression->num_replicas) {
    const int replica = model.rank().mesh.coordinate(model.rank().rank, sharding::kReplicateAxis);
    std::ranges::move(error_pieces(options, model, replica, state.tensors, which),
                      std::back_inserter(state.pieces));
  }
  const Index shared = index_of(options, state.tensors);
  std::vector<optim::MomentPiece> divided;
  for (const optim::MomentPiece& piece : sum->shared_pieces()) {
    if (piece.kind != optim::kBasisKind) {
      divided.push_back(piece);
      continue;
    }
    const auto unit = std::ranges::find_if(model.units(), [&](const sharding::UnitState& each) {
      return std::ranges::any_of(each.spec().parameters, [&](const ParameterSpec& parameter) {
        return parameter.index == piece.parameter;
      });
    });
    if (which == Pieces::kOwned && !saves_factors(model.rank(), *unit)) continue;
    state.pieces.push_back({shared.at({piece.parameter, piece.kind}), piece.first_element,
                            piece.data.numel, piece.data});
  }
  add_moments(options, model, divided, shared, which, state.pieces);
}

}  // namespace

std::vector<sharding::StatePiece> error_pieces(const TrainingOptions& options,
                                               const ShardedModel& model, int replica,
                                               const std::vector<sharding::StateTensor>& tensors,
                                               Pieces which) {
  const Index own = index_of(options, tensors, replica);
  std::map<std::uint32_t, const ParameterSpec*> parameters;
  for (const sharding::UnitState& unit : model.units()) {
    for (const ParameterSpec& parameter : unit.spec().parameters) {
      parameters[parameter.index] = &parameter;
    }
  }
  std::vector<sharding::StatePiece> pieces;
  for (const optim::MomentPiece& piece : model.compressed_sum()->own_pieces()) {
    add_pieces(*parameters.at(piece.parameter), own.at({piece.parameter, piece.kind}),
               {piece.first_element, piece.data.numel, piece.data}, which, pieces);
  }
  return pieces;
}

sharding::State run_state(const TrainingOptions& options, const ShardedModel& model,
                          const TrainingStep& training_step, Pieces pieces, int saved_replicas) {
  sharding::State state{state_tensors(options, saved_replicas), {}};
  const Index shared = index_of(options, state.tensors);
  Index own = shared;
  bool has_local = false;  // the weights of every replica
  if (const optim::OuterUpdate* const outer = training_step.outer_update()) {
    const int replicas = replicas_of(state.tensors);
    const int replica = model.rank().mesh.coordinate(model.rank().rank, sharding::kReplicateAxis);
    own = index_of(options, state.tensors, replica < replicas ? replica : 0);
    has_local = replicas == options.local_updates.num_replicas;
    if (pieces == Pieces::kHeld || replica == 0) {
      add_moments(options, model, outer->pieces(), shared, pieces, state.pieces);
    }
  }
  add_weights(model, has_local ? own : shared, has_local ? optim::kLocalKind : kParam, pieces,
              state.pieces);
  if (pieces == Pieces::kOwned) add_frozen(options, model, shared, state.pieces);
  add_published(model, shared, state.pieces);
  add_moments(options, model, training_step.optimizer().moment_pieces(), own, pieces, state.pieces);
  if (const optim::WeightAverage* const average = training_step.average()) {
    add_moments(options, model, average->pieces(), shared, pieces, state.pieces);
  }
  add_compression(options, model, pieces, state);
  return state;
}

sharding::State weights(const TrainingOptions& options, const ShardedModel& model, Pieces pieces) {
  sharding::State state;
  for (sharding::StateTensor& tensor : state_tensors(options)) {
    if (tensor.kind == kParam) state.tensors.push_back(std::move(tensor));
  }
  add_weights(model, index_of(options, state.tensors), kParam, pieces, state.pieces);
  return state;
}

}  // namespace sherd::engine
