#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/orthogonalise.h"
#include "optim/matrix_parts.h"
#include "sharding/comm/communicator.h"

namespace sherd::optim {

namespace {

/// One logical matrix of a unit's flat buffer, or this rank's part of it.
struct OwnedMatrix {
  std::int64_t offset = 0;  ///< in the flat buffer
  MatrixPart part;
  int owner = 0;  ///< among the owners of slices
  int tensor_owner = 0;

  std::int64_t numel() const { return part.numel(); }
  double cost() const {
    return static_cast<double>(part.whole_numel()) *
           static_cast<double>(std::min(part.whole_rows, part.whole_columns));
  }
};

std::vector<OwnedMatrix> matrices_of(const sharding::UnitPlan& unit) {
  std::vector<OwnedMatrix> matrices;
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (!is_muons(unit.spec, parameter)) continue;
    std::int64_t offset = unit.layout.offset(static_cast<int>(i));
    for (const MatrixPart& part : matrix_parts(parameter)) {
      matrices.push_back({offset, part});
      offset += part.numel();
    }
  }
  return matrices;
}

// Within a unit, since units are updated one after another. The same on every rank.
void choose_owners(std::vector<OwnedMatrix>& matrices, int num_slices, int tensor_degree) {
  const int group_size = num_slices * tensor_degree;
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return matrices[a].cost() > matrices[b].cost();
  });
  // No more ranks than matrices get one: while a rank has none, no other gets its second.
  const std::size_t num_owners = std::min(matrices.size(), static_cast<std::size_t>(group_size));
  std::vector<double> load(num_owners, 0.0);
  for (const std::size_t index : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += matrices[index].cost();
    const auto owner = static_cast<int>(least - load.begin());
    matrices[index].owner = owner / tensor_degree;
    matrices[index].tensor_owner = owner % tensor_degree;
  }
}

std::int64_t padded(std::int64_t numel) {
  return (numel + sharding::kAlignment - 1) / sharding::kAlignment * sharding::kAlignment;
}

// AdamW's second moment is kept for AdamW's parameters only, piece after piece of the updated
// slices. Pieces begin at multiples of 64 elements, so all of a parameter's pieces together take
// what the parameter takes.
std::int64_t second_moment_numel(const sharding::UnitPlan& unit, int slice) {
  std::int64_t numel = 0;
  if (!unit.placement.optimizer_sharded()) {
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      if (!is_muons(unit.spec, parameter)) numel += padded(parameter.numel());
    }
    return numel;
  }
  for (const sharding::Piece& piece : unit.layout.pieces(slice)) {
    if (!is_muons(unit.spec, unit.spec.parameters[piece.parameter])) numel += padded(piece.count);
  }
  return numel;
}

// The same for all slices at once.
std::vector<std::int64_t> second_moment_numels(const sharding::UnitPlan& unit) {
  const auto num_slices = static_cast<std::size_t>(unit.layout.num_slices());
  if (!unit.placement.optimizer_sharded()) {
    return std::vector<std::int64_t>(num_slices, second_moment_numel(unit, 0));
  }
  const std::int64_t slice = unit.layout.slice_numel();
  std::vector<std::int64_t> numels(num_slices, 0);
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (is_muons(unit.spec, parameter)) continue;
    const std::int64_t begin = unit.layout.offset(static_cast<int>(i));
    const std::int64_t end = begin + parameter.numel();
    for (std::int64_t rank = begin / slice; rank * slice < end; ++rank) {
      numels[rank] += padded(std::min(end, (rank + 1) * slice) - std::max(begin, rank * slice));
    }
  }
  return numels;
}

struct MuonBuffers {
  std::vector<std::optional<BufferSpec>> momentum, exp_avg_sq;  // by unit
  std::optional<BufferSpec> update, workspace;
  std::vector<MatrixPart> matrices;  // of all units
};

MuonBuffers buffers_of(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                       int rank) {
  MuonBuffers buffers;
  std::int64_t largest_unit = 0, workspace = 0;
  for (const sharding::UnitPlan& unit : plan.units) {
    buffers.momentum.emplace_back();
    if (unit.trains())
      buffers.momentum.back() = moment_buffer(unit, "momentum", options.moment_type);
    const std::int64_t rest =
        second_moment_numel(unit, plan.mesh.index_in_group(rank, unit.placement.slices));
    buffers.exp_avg_sq.emplace_back();
    if (rest > 0) {
      buffers.exp_avg_sq.back() = {unit.spec.name + ".exp_avg_sq", Category::kOptimizer,
                                   options.moment_type.dtype, rest};
    }
    for (const OwnedMatrix& matrix : matrices_of(unit)) {
      largest_unit = std::max(largest_unit, unit.layout.numel());
      workspace = std::max(workspace, kernels::orthogonalise_workspace_numel(
                                          matrix.part.whole_rows, matrix.part.whole_columns));
      buffers.matrices.push_back(matrix.part);
    }
  }
  if (largest_unit > 0) {
    buffers.update = {"muon.update", Category::kWorkspace, DType::kF32, largest_unit, kUpdate};
    buffers.workspace = {"muon.workspace", Category::kWorkspace, DType::kF32, workspace, kUpdate};
  }
  return buffers;
}

/// One slice: what is Muon's of it, and what is AdamW's.
struct MuonSlice {
  UpdatedSlice matrices;                     ///< segments of matrices only
  std::vector<float> ratios;                 ///< one per segment
  UpdatedSlice rest;                         ///< the other segments
  std::vector<std::int64_t> rest_positions;  ///< of each rest segment in the unit's exp_avg_sq
  std::vector<kernels::UpdateSegment> rest_alone;  ///< each as if its buffers began with it
};

class Muon final : public Optimizer {
 public:
  Muon(const OptimizerOptions& options, const sharding::Rank& rank,
       const std::vector<sharding::UnitState>& units)
      : options_(options),
        rank_(&rank),
        units_(&units),
        ready_(rank.make_event()),
        done_(rank.make_event()) {
    const MuonBuffers buffers =
        buffers_of(options, {rank.mesh, sharding::plans_of(units)}, rank.rank);
    auto slices = updated_slices(units, options);
    parts_.emplace(rank, buffers.matrices);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      moments_.emplace_back();
      exp_avg_sq_.emplace_back();
      if (buffers.momentum[unit]) moments_.back() = rank.memory->acquire(*buffers.momentum[unit]);
      if (buffers.exp_avg_sq[unit]) {
        exp_avg_sq_.back() = rank.memory->acquire(*buffers.exp_avg_sq[unit]);
      }
      matrices_.push_back(matrices_of(units[unit].plan()));
      choose_owners(matrices_.back(), units[unit].layout().num_slices(), parts_->degree());
      communicators_.push_back(
          &rank.groups->get(units[unit].placement().slices, sharding::Purpose::kReduce));
      slices_.emplace_back();
      std::int64_t rest_position = 0;
      for (UpdatedSlice& slice : slices[unit]) {
        slices_.back().push_back(split(units[unit], std::move(slice), rest_position));
      }
    }
    if (buffers.update) update_ = rank.memory->acquire(*buffers.update);
    if (buffers.workspace) workspace_ = rank.memory->acquire(*buffers.workspace);
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    if (!matrices_[unit].empty()) update_matrices(stream, unit, step);
    for (const MuonSlice& slice : slices_[unit]) update_rest(stream, unit, slice, step);
  }

  std::vector<MomentPiece> moment_pieces() const override {
    std::vector<MomentPiece> pieces;
    for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
      for (const MuonSlice& slice : slices_[unit]) {
        add_moment_pieces(slice.matrices, "momentum", slice.matrices.part_of(moments_[unit]),
                          pieces);
        add_moment_pieces(slice.rest, "exp_avg", slice.rest.part_of(moments_[unit]), pieces);
        for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
          const kernels::UpdateSegment& segment = slice.rest.segments[i];
          add_moment_piece({"exp_avg_sq", slice.rest.slice_index, segment.parameter,
                            segment.first_element, second_moment(unit, slice, i)},
                           pieces);
        }
      }
    }
    return pieces;
  }

 private:
  // Positions in the unit's exp_avg_sq go on from slice to slice.
  static MuonSlice split(const sharding::UnitState& unit, UpdatedSlice slice,
                         std::int64_t& rest_position) {
    MuonSlice result{slice, {}, slice, {}, {}};
    result.matrices.segments.clear();
    result.rest.segments.clear();
    for (const kernels::UpdateSegment& segment : slice.segments) {
      const ParameterSpec& parameter = parameter_at(unit.spec(), segment.parameter);
      if (is_muons(unit.spec(), parameter)) {
        result.matrices.segments.push_back(segment);
        result.ratios.push_back(ratio_of(parameter, segment.first_element));
      } else {
        result.rest_alone.push_back(segment);
        result.rest_alone.back().first = 0;
        // Segments of a piece follow one another; only the piece is padded.
        if (!result.rest.segments.empty() && !goes_on(result.rest.segments.back(), segment)) {
          rest_position = padded(rest_position);
        }
        result.rest.segments.push_back(segment);
        result.rest_positions.push_back(rest_position);
        rest_position += segment.count;
      }
    }
    rest_position = padded(rest_position);
    return result;
  }
  static bool goes_on(const kernels::UpdateSegment& one, const kernels::UpdateSegment& next) {
    return one.parameter == next.parameter && one.first + one.count == next.first;
  }

  Tensor second_moment(std::size_t unit, const MuonSlice& slice, std::size_t segment) const {
    return exp_avg_sq_[unit].tensor().part(slice.rest_positions[segment],
                                           slice.rest.segments[segment].count);
  }

  static float ratio_of(const ParameterSpec& parameter, std::int64_t element) {
    MatrixPart matrix;
    std::int64_t end = 0;
    for (const MatrixPart& part : matrix_parts(parameter)) {
      matrix = part;
      end += part.numel();
      if (element < end) break;
    }
    return static_cast<float>(std::sqrt(std::max(
        1.0, static_cast<double>(matrix.whole_rows) / static_cast<double>(matrix.whole_columns))));
  }

  kernels::MuonUpdate muon_args(int unit, const MuonSlice& slice, const UpdateStep& step) const {
    const Tensor full = update_.tensor().part(0, (*units_)[unit].layout().numel());
    return {.common = common_of(slice.matrices, step, options_.moment_type),
            .momentum_buffer = slice.matrices.part_of(moments_[unit]),
            .update = (*units_)[unit].layout().slice(full, slice.matrices.slice_index),
            .momentum = options_.momentum};
  }

  void update_matrices(Stream& stream, int unit, const UpdateStep& step) {
    const sharding::UnitState& state = (*units_)[unit];
    const Tensor full = update_.tensor().part(0, state.layout().numel());
    for (const MuonSlice& slice : slices_[unit]) {
      kernels::muon_momentum(stream, muon_args(unit, slice, step));
    }
    if (state.placement().optimizer_sharded()) {
      exchange(stream, [&](Stream& reduce) {
        communicators_[unit]->all_gather(reduce, state.name(), full);
      });
    }
    orthogonalise(stream, state, matrices_[unit], full);
    if (state.layout().num_slices() > 1) {
      exchange(stream, [&](Stream& reduce) {
        for (const OwnedMatrix& matrix : matrices_[unit]) {
          communicators_[unit]->broadcast(reduce, state.name(),
                                          full.part(matrix.offset, matrix.numel()), matrix.owner);
        }
      });
    }
    for (const MuonSlice& slice : slices_[unit]) {
      kernels::muon_apply(stream, muon_args(unit, slice, step), slice.ratios);
    }
  }

  // This rank's matrices, or those of its tensor ranks: these form one for each of them, compute side by
  // side, and hand back.
  void orthogonalise(Stream& stream, const sharding::UnitState& state,
                     const std::vector<OwnedMatrix>& matrices, const Tensor& full) {
    const int degree = parts_->degree();
    std::vector<std::vector<const OwnedMatrix*>> of_rank(static_cast<std::size_t>(degree));
    for (const OwnedMatrix& matrix : matrices) {
      if (matrix.owner != state.own_slice()) continue;
      of_rank[static_cast<std::size_t>(matrix.tensor_owner)].push_back(&matrix);
    }
    const auto compute = [&](const MatrixPart& part, const Tensor& whole) {
      kernels::orthogonalise(stream, whole, part.whole_rows, part.whole_columns,
                             workspace_.tensor());
    };
    const auto part_of = [&](const OwnedMatrix& matrix) {
      return full.part(matrix.offset, matrix.numel());
    };
    if (degree == 1) {
      for (const OwnedMatrix* matrix : of_rank[0]) compute(matrix->part, part_of(*matrix));
      return;
    }
    const std::size_t rounds =
        std::ranges::max(of_rank, {}, [](const auto& own) { return own.size(); }).size();
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto each = [&](const auto& use) {
        for (int rank = 0; rank < degree; ++rank) {
          const auto& own = of_rank[static_cast<std::size_t>(rank)];
          if (round < own.size()) use(*own[round], rank);
        }
      };
      each([&](const OwnedMatrix& matrix, int owner) {
        parts_->form(state.name(), matrix.part, part_of(matrix), owner);
      });
      each([&](const OwnedMatrix& matrix, int owner) {
        if (owner == parts_->tensor_rank()) compute(matrix.part, parts_->whole(matrix.part));
      });
      each([&](const OwnedMatrix& matrix, int owner) {
        parts_->hand_back(state.name(), matrix.part, part_of(matrix), owner);
      });
    }
  }

  // Collectives between two pieces of work of the compute stream.
  template <class Collectives>
  void exchange(Stream& stream, const Collectives& collectives) {
    stream.record(*ready_);
    rank_->reduce().wait(*ready_);
    collectives(rank_->reduce());
    rank_->reduce().record(*done_);
    stream.wait(*done_);
  }

  // Segment by segment, since the second moment is kept for these segments only.
  void update_rest(Stream& stream, int unit, const MuonSlice& slice, const UpdateStep& step) const {
    UpdateStep how = step;
    how.lr = step.lr * options_.adamw_lr_ratio;
    kernels::UpdateCommon common = common_of(slice.rest, how, options_.moment_type);
    const Tensor exp_avg = slice.rest.part_of(moments_[unit]);
    for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
      const kernels::UpdateSegment& segment = slice.rest.segments[i];
      common.parameter = slice.rest.parameter.part(segment.first, segment.count);
      common.gradient = slice.rest.gradient.part(segment.first, segment.count);
      common.segments = {&slice.rest_alone[i], 1};
      kernels::adam_update(stream,
                           {.common = common,
                            .exp_avg = exp_avg.part(segment.first, segment.count),
                            .exp_avg_sq = second_moment(static_cast<std::size_t>(unit), slice, i),
                            .decoupled_decay = true,
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .eps = options_.eps,
                            .update_number = step.update_number});
    }
  }

  OptimizerOptions options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  std::vector<sharding::Communicator*> communicators_;  // by unit
  std::vector<std::vector<OwnedMatrix>> matrices_;      // by unit
  std::vector<std::vector<MuonSlice>> slices_;          // by unit
  std::vector<Buffer> moments_;     // momentum of matrices, AdamW's first moment of the rest
  std::vector<Buffer> exp_avg_sq_;  // AdamW's second moment of the rest
  Buffer update_;                   // u, full, of one unit at a time
  Buffer workspace_;
  std::optional<MatrixParts> parts_;
  std::unique_ptr<Event> ready_, done_;
};

std::vector<BufferSpec> muon_buffers(const OptimizerOptions& options,
                                     const sharding::ShardingPlan& plan, int rank) {
  MuonBuffers buffers = buffers_of(options, plan, rank);
  std::vector<BufferSpec> all;
  for (auto* by_unit : {&buffers.momentum, &buffers.exp_avg_sq}) {
    for (auto& moments : *by_unit) {
      if (moments) all.push_back(std::move(*moments));
    }
  }
  if (buffers.update) all.push_back(std::move(*buffers.update));
  if (buffers.workspace) all.push_back(std::move(*buffers.workspace));
  for (BufferSpec& buffer :
       MatrixParts::buffers(buffers.matrices, plan.mesh.degree(sharding::kTensorAxis))) {
    all.push_back(std::move(buffer));
  }
  return all;
}

sharding::Traffic muon_traffic(const OptimizerOptions&, const sharding::ShardingPlan& plan,
                               int rank) {
  sharding::Traffic traffic;
  const int degree = plan.mesh.degree(sharding::kTensorAxis);
  const int tensor_rank = plan.mesh.coordinate(rank, sharding::kTensorAxis);
  for (const sharding::UnitPlan& unit : plan.units) {
    std::vector<OwnedMatrix> matrices = matrices_of(unit);
    if (matrices.empty()) continue;
    const int group_size = unit.layout.num_slices();
    const int own = plan.mesh.index_in_group(rank, unit.placement.slices);
    choose_owners(matrices, group_size, degree);
    if (unit.placement.optimizer_sharded()) {
      traffic.add("muon updates", sharding::Collective::kAllGather, DType::kF32,
                  unit.layout.numel(), group_size);
    }
    for (const OwnedMatrix& matrix : matrices) {
      if (matrix.owner == own && degree > 1) {
        MatrixParts::add_traffic(matrix.part, degree, matrix.tensor_owner == tensor_rank, traffic);
      }
      if (group_size == 1) continue;
      if (matrix.owner == own) {
        traffic.add("muon matrices", sharding::Collective::kBroadcast, DType::kF32, matrix.numel(),
                    group_size);
      } else {
        traffic.add_silent("muon matrices", sharding::Collective::kBroadcast, DType::kF32);
      }
    }
  }
  return traffic;
}

}  // namespace

bool is_muons(const UnitSpec& unit, const ParameterSpec& parameter) {
  return unit.unit_class == UnitClass::kBlock && parameter.shape.size() == 2;
}

OptimizerDescriptor muon_descriptor() {
  return {.type = OptimizerType::kMuon,
          .moment_kinds = [](const OptimizerOptions&, const UnitSpec& unit,
                             const ParameterSpec& parameter) -> std::vector<std::string> {
            if (is_muons(unit, parameter)) return {"momentum"};
            return {"exp_avg", "exp_avg_sq"};
          },
          .buffers = muon_buffers,
          .traffic = muon_traffic,
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Muon>(options, rank, units);
          },
          .uneven_numels = second_moment_numels,
          .defaults = {.momentum = 0.95},
          .leaves_some_to_adamw = true};
}

}  // namespace sherd::optim
