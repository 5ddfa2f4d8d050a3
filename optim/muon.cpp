#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/orthogonalise.h"
#include "optim/muon_plan.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::optim {

namespace {

/// One slice: the part that Muon updates, and the part that AdamW updates.
struct MuonSlice {
  UpdatedSlice matrices;                     ///< segments of matrices only
  std::vector<float> ratios;                 ///< one per segment
  UpdatedSlice rest;                         ///< the other segments
  std::vector<std::int64_t> rest_positions;  ///< of each rest segment in the unit's exp_avg_sq
  std::vector<kernels::UpdateSegment> rest_alone;  ///< each as if its buffers began with it
  std::vector<ParameterGroup> rest_rates;          ///< of each rest segment
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
      if (buffers.momentum[unit]) moments_.back() = rank.acquire(*buffers.momentum[unit]);
      if (buffers.exp_avg_sq[unit]) {
        exp_avg_sq_.back() = rank.acquire(*buffers.exp_avg_sq[unit]);
      }
      matrices_.push_back(matrices_of(options, units[unit].plan()));
      choose_owners(matrices_.back(), units[unit].layout().num_slices(), parts_->degree());
      communicators_.push_back(
          &rank.groups->get(units[unit].placement().group, sharding::Purpose::kReduce));
      slices_.emplace_back();
      std::int64_t rest_position = 0;
      for (UpdatedSlice& slice : slices[unit]) {
        slices_.back().push_back(split(units[unit], std::move(slice), rest_position));
      }
    }
    if (buffers.update) update_ = rank.acquire(*buffers.update);
    if (buffers.workspace) workspace_ = rank.acquire(*buffers.workspace);
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
  // Positions in the unit's exp_avg_sq continue from slice to slice.
  MuonSlice split(const sharding::UnitState& unit, UpdatedSlice slice,
                  std::int64_t& rest_position) const {
    MuonSlice result{slice, {}, slice, {}, {}, {}};
    result.matrices.segments.clear();
    result.rest.segments.clear();
    for (const kernels::UpdateSegment& segment : slice.segments) {
      const ParameterSpec& parameter = parameter_at(unit.spec(), segment.parameter);
      if (is_muons(options_, unit.spec(), parameter)) {
        result.matrices.segments.push_back(segment);
        result.ratios.push_back(ratio_of(parameter, segment.first_element) *
                                options_.lr_factor_of(parameter));
      } else {
        result.rest_alone.push_back(segment);
        result.rest_alone.back().first = 0;
        // Segments of a piece follow one another; only the piece is padded.
        if (!result.rest.segments.empty() && !goes_on(result.rest.segments.back(), segment)) {
          rest_position = padded(rest_position);
        }
        result.rest.segments.push_back(segment);
        result.rest_positions.push_back(rest_position);
        result.rest_rates.push_back(options_.rates_of(options_.group_of(parameter)));
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

  float ratio_of(const ParameterSpec& parameter, std::int64_t element) const {
    MatrixPart matrix;
    std::int64_t end = 0;
    for (const MatrixPart& part : matrix_parts(parameter)) {
      matrix = part;
      end += part.numel();
      if (element < end) break;
    }
    const auto rows = static_cast<double>(matrix.whole_rows);
    const auto columns = static_cast<double>(matrix.whole_columns);
    return static_cast<float>(options_.muon_scale == MuonScale::kOriginal
                                  ? std::sqrt(std::max(1.0, rows / columns))
                                  : 0.2 * std::sqrt(std::max(rows, columns)));
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

  // This rank's matrices, or those of its tensor ranks: then each tensor rank forms one matrix,
  // they compute in parallel, and hand the matrices back.
  void orthogonalise(Stream& stream, const sharding::UnitState& state,
                     const std::vector<OwnedMatrix>& matrices, const Tensor& full) {
    const int degree = parts_->degree();
    std::vector<std::vector<const OwnedMatrix*>> of_rank(static_cast<std::size_t>(degree));
    for (const OwnedMatrix& matrix : matrices) {
      if (matrix.owner != state.own_slice()) continue;
      of_rank[static_cast<std::size_t>(matrix.tensor_owner)].push_back(&matrix);
    }
    const auto polynomials = options_.muon_coefficients == MuonCoefficients::kPolarExpress
                                 ? kernels::Polynomials::kPolarExpress
                                 : kernels::Polynomials::kJordan;
    const auto compute = [&](const MatrixPart& part, const Tensor& whole) {
      kernels::orthogonalise(stream, {whole, part.whole_rows, part.whole_columns,
                                      options_.muon_dtype, workspace_.tensor(), polynomials});
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
    kernels::UpdateCommon common = common_of(slice.rest, step, options_.moment_type);
    const float lr = step.lr * options_.adamw_lr_ratio;
    const Tensor exp_avg = slice.rest.part_of(moments_[unit]);
    for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
      const kernels::UpdateSegment& segment = slice.rest.segments[i];
      const ParameterGroup& rates = slice.rest_rates[i];
      common.lr = lr * rates.lr_factor;
      common.parameter = slice.rest.parameter.part(segment.first, segment.count);
      common.gradient = slice.rest.gradient.part(segment.first, segment.count);
      common.segments = {&slice.rest_alone[i], 1};
      kernels::adam_update(stream,
                           {.common = common,
                            .exp_avg = exp_avg.part(segment.first, segment.count),
                            .exp_avg_sq = second_moment(static_cast<std::size_t>(unit), slice, i),
                            .decoupled_decay = true,
                            .beta1 = rates.beta1,
                            .beta2 = rates.beta2,
                            .eps = rates.eps,
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

}  // namespace

OptimizerDescriptor muon_descriptor() {
  return {.type = OptimizerType::kMuon,
          .moment_kinds = [](const OptimizerOptions& options, const UnitSpec& unit,
                             const ParameterSpec& parameter) -> std::vector<std::string> {
            if (is_muons(options, unit, parameter)) return {"momentum"};
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
