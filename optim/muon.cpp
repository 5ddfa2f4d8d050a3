#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/orthogonalise.h"

namespace sherd::optim {
namespace {

/// One logical matrix of a unit's flat buffer.
struct OwnedMatrix {
  std::int64_t offset = 0;  ///< in the flat buffer
  std::int64_t rows = 0, columns = 0;
  int owner = 0;

  std::int64_t numel() const { return rows * columns; }
  double cost() const {
    return static_cast<double>(numel()) * static_cast<double>(std::min(rows, columns));
  }
};

bool is_muons(const sharding::UnitState& unit, const ParameterSpec& parameter) {
  return unit.spec().unit_class == UnitClass::kBlock && parameter.shape.size() == 2;
}

std::vector<OwnedMatrix> matrices_of(const sharding::UnitState& unit) {
  std::vector<OwnedMatrix> matrices;
  for (std::size_t i = 0; i < unit.spec().parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec().parameters[i];
    if (!is_muons(unit, parameter)) continue;
    std::vector<std::int64_t> all_rows = parameter.matrix_rows;
    if (all_rows.empty()) all_rows = {parameter.shape[0]};
    std::int64_t offset = unit.layout().offset(static_cast<int>(i));
    for (const std::int64_t rows : all_rows) {
      matrices.push_back({offset, rows, parameter.shape[1], 0});
      offset += rows * parameter.shape[1];
    }
  }
  return matrices;
}

// Within a unit, since units are updated one after another. The same on every rank.
void choose_owners(std::vector<OwnedMatrix>& matrices, int world_size) {
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return matrices[a].cost() > matrices[b].cost();
  });
  std::vector<double> load(static_cast<std::size_t>(world_size), 0.0);
  for (const std::size_t index : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += matrices[index].cost();
    matrices[index].owner = static_cast<int>(least - load.begin());
  }
}

/// One slice: what is Muon's of it, and what is AdamW's.
struct MuonSlice {
  UpdatedSlice matrices;                     ///< segments of matrices only
  std::vector<float> ratios;                 ///< one per segment
  UpdatedSlice rest;                         ///< the other segments
  Buffer exp_avg_sq;                         ///< compact: only as long as `rest`
  std::vector<std::int64_t> rest_positions;  ///< of each rest segment in exp_avg_sq
};

class Muon final : public Optimizer {
 public:
  Muon(const OptimizerOptions& options, const sharding::Rank& rank,
       const std::vector<sharding::UnitState>& units)
      : options_(options),
        rank_(&rank),
        units_(&units),
        moments_(acquire_moments(rank, units, "momentum", options.moments)),
        ready_(rank.make_event()),
        done_(rank.make_event()) {
    auto slices = updated_slices(units, options.decay);
    std::int64_t largest_unit = 0, workspace = 0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      matrices_.push_back(matrices_of(units[unit]));
      choose_owners(matrices_.back(), rank.world_size);
      for (const OwnedMatrix& matrix : matrices_.back()) {
        largest_unit = std::max(largest_unit, units[unit].layout().numel());
        workspace = std::max(workspace,
                             kernels::orthogonalise_workspace_numel(matrix.rows, matrix.columns));
      }
      slices_.emplace_back();
      for (UpdatedSlice& slice : slices[unit]) {
        slices_.back().push_back(split(units[unit], std::move(slice)));
      }
    }
    if (largest_unit == 0) return;
    const auto acquire = [&](const char* name, std::int64_t numel) {
      return rank.memory->acquire({name, Category::kWorkspace, DType::kF32, numel, kUpdate});
    };
    update_ = acquire("muon.update", largest_unit);
    workspace_ = acquire("muon.workspace", workspace);
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    if (!matrices_[unit].empty()) update_matrices(stream, unit, step);
    for (const MuonSlice& slice : slices_[unit]) update_rest(stream, unit, slice, step);
  }

 private:
  MuonSlice split(const sharding::UnitState& unit, UpdatedSlice slice) {
    MuonSlice result{slice, {}, slice, {}, {}};
    result.matrices.segments.clear();
    result.rest.segments.clear();
    std::int64_t rest_numel = 0;
    const std::uint32_t first_index = unit.spec().parameters[0].index;
    for (const kernels::UpdateSegment& segment : slice.segments) {
      const ParameterSpec& parameter = unit.spec().parameters[segment.parameter - first_index];
      if (is_muons(unit, parameter)) {
        result.matrices.segments.push_back(segment);
        result.ratios.push_back(ratio_of(parameter, segment.first_element));
      } else {
        result.rest.segments.push_back(segment);
        result.rest_positions.push_back(rest_numel);
        rest_numel += (segment.count + sharding::kAlignment - 1) / sharding::kAlignment *
                      sharding::kAlignment;
      }
    }
    if (rest_numel > 0) {
      result.exp_avg_sq =
          rank_->memory->acquire({fmt::format("{}.exp_avg_sq.{}", unit.name(), slice.owner),
                                  Category::kOptimizer, options_.moments.dtype, rest_numel});
    }
    return result;
  }

  static float ratio_of(const ParameterSpec& parameter, std::int64_t element) {
    const std::int64_t columns = parameter.shape[1];
    std::int64_t rows = parameter.shape[0];
    std::int64_t end = 0;
    for (const std::int64_t stacked : parameter.matrix_rows) {
      rows = stacked;
      end += stacked * columns;
      if (element < end) break;
    }
    return static_cast<float>(
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns))));
  }

  kernels::MuonUpdate muon_args(int unit, const MuonSlice& slice, const UpdateStep& step) const {
    const Tensor full = update_.tensor().part(0, (*units_)[unit].layout().numel());
    return {.common = common_of(slice.matrices, step, options_.moments),
            .momentum_buffer = slice.matrices.part_of(moments_[unit]),
            .update = (*units_)[unit].layout().slice(full, slice.matrices.owner),
            .momentum = options_.momentum};
  }

  void update_matrices(Stream& stream, int unit, const UpdateStep& step) {
    const sharding::UnitState& state = (*units_)[unit];
    const Tensor full = update_.tensor().part(0, state.layout().numel());
    for (const MuonSlice& slice : slices_[unit]) {
      kernels::muon_momentum(stream, muon_args(unit, slice, step));
    }
    if (state.placement().optimizer_sharded) {
      exchange(stream, [&](Stream& reduce) {
        rank_->reduce_communicator->all_gather(reduce, state.name(), full);
      });
    }
    for (const OwnedMatrix& matrix : matrices_[unit]) {
      if (matrix.owner != rank_->rank) continue;
      kernels::orthogonalise(stream, full.part(matrix.offset, matrix.numel()), matrix.rows,
                             matrix.columns, workspace_.tensor());
    }
    if (rank_->world_size > 1) {
      exchange(stream, [&](Stream& reduce) {
        for (const OwnedMatrix& matrix : matrices_[unit]) {
          rank_->reduce_communicator->broadcast(
              reduce, state.name(), full.part(matrix.offset, matrix.numel()), matrix.owner);
        }
      });
    }
    for (const MuonSlice& slice : slices_[unit]) {
      kernels::muon_apply(stream, muon_args(unit, slice, step), slice.ratios);
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
    kernels::UpdateCommon common = common_of(slice.rest, how, options_.moments);
    const Tensor exp_avg = slice.rest.part_of(moments_[unit]);
    for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
      const kernels::UpdateSegment& segment = slice.rest.segments[i];
      kernels::UpdateSegment alone = segment;
      alone.first = 0;
      common.parameter = slice.rest.parameter.part(segment.first, segment.count);
      common.gradient = slice.rest.gradient.part(segment.first, segment.count);
      common.segments = {&alone, 1};
      kernels::adam_update(stream, {.common = common,
                                    .exp_avg = exp_avg.part(segment.first, segment.count),
                                    .exp_avg_sq = slice.exp_avg_sq.tensor().part(
                                        slice.rest_positions[i], segment.count),
                                    .decoupled_decay = true,
                                    .beta1 = options_.beta1,
                                    .beta2 = options_.beta2,
                                    .eps = options_.eps,
                                    .time_step = step.time_step});
    }
  }

  OptimizerOptions options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  std::vector<std::vector<OwnedMatrix>> matrices_;  // by unit
  std::vector<std::vector<MuonSlice>> slices_;      // by unit
  std::vector<Buffer> moments_;  // momentum of matrices, AdamW's first moment of the rest
  Buffer update_;                // u, full, of one unit at a time
  Buffer workspace_;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options, const sharding::Rank& rank,
                                     const std::vector<sharding::UnitState>& units) {
  return std::make_unique<Muon>(options, rank, units);
}

}  // namespace sherd::optim
