#include "optim/matrices/matrix_optimizer.h"

#include <algorithm>

#include "sharding/mesh/process_groups.h"

namespace sherd::optim {
namespace {

bool goes_on(const kernels::UpdateSegment& one, const kernels::UpdateSegment& next) {
  return one.parameter == next.parameter && one.first + one.count == next.first;
}

// The matrix that contains an element of the parameter.
MatrixPart part_with(const ParameterSpec& parameter, std::int64_t element) {
  MatrixPart matrix;
  std::int64_t end = 0;
  for (const MatrixPart& part : matrix_parts(parameter)) {
    matrix = part;
    end += part.numel();
    if (element < end) break;
  }
  return matrix;
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(const OptimizerOptions& options, const sharding::Rank& rank,
                                 const std::vector<sharding::UnitState>& units,
                                 const MatrixBuffers& buffers,
                                 const std::function<double(const MatrixPart&)>& ratio_of)
    : options_(options),
      rank_(&rank),
      units_(&units),
      ready_(rank.make_event()),
      done_(rank.make_event()) {
  auto slices = updated_slices(units, options);
  parts_.emplace(rank, buffers.matrices);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    moments_.push_back(rank.acquire(buffers.momentum[unit]));
    exp_avg_.push_back(rank.acquire(buffers.exp_avg[unit]));
    exp_avg_sq_.push_back(rank.acquire(buffers.exp_avg_sq[unit]));
    matrices_.push_back(matrices_of(options, units[unit].plan()));
    choose_owners(matrices_.back(), units[unit].layout().num_slices(), parts_->degree());
    communicators_.push_back(
        &rank.groups->get(units[unit].placement().group, sharding::Purpose::kReduce));
    slices_.emplace_back();
    std::int64_t rest_position = 0;
    for (UpdatedSlice& slice : slices[unit]) {
      slices_.back().push_back(split(units[unit], std::move(slice), rest_position, ratio_of));
    }
  }
  if (buffers.full) full_ = rank.acquire(*buffers.full);
}

void MatrixOptimizer::update(Stream& stream, int unit, const UpdateStep& step) {
  if (!matrices(unit).empty()) update_matrices(stream, unit, step);
  for (const Slice& slice : slices_[static_cast<std::size_t>(unit)]) {
    update_rest(stream, unit, slice, step);
  }
}

std::vector<MomentPiece> MatrixOptimizer::moment_pieces() const {
  std::vector<MomentPiece> pieces;
  for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
    for (const Slice& slice : slices_[unit]) {
      const UpdatedSlice& matrices = slice.matrices.slice;
      if (moments_[unit]) {
        add_moment_pieces(matrices, "momentum", matrices.part_of(moments_[unit]), pieces);
      }
      add_rest_pieces(unit, slice, "exp_avg", &MatrixOptimizer::first_moment, pieces);
      add_rest_pieces(unit, slice, "exp_avg_sq", &MatrixOptimizer::second_moment, pieces);
    }
  }
  return pieces;
}

void MatrixOptimizer::add_rest_pieces(std::size_t unit, const Slice& slice, const std::string& kind,
                                      Tensor (MatrixOptimizer::*moment)(std::size_t, const Slice&,
                                                                        std::size_t) const,
                                      std::vector<MomentPiece>& pieces) const {
  for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
    const kernels::UpdateSegment& segment = slice.rest.segments[i];
    add_moment_piece({kind, slice.rest.slice_index, segment.parameter, segment.first_element,
                      (this->*moment)(unit, slice, i)},
                     pieces);
  }
}

void MatrixOptimizer::for_each_slice(int unit,
                                     const std::function<void(const Matrices&)>& use) const {
  for (const Slice& slice : slices_[static_cast<std::size_t>(unit)]) use(slice.matrices);
}

kernels::MuonUpdate MatrixOptimizer::args_of(int unit, const Matrices& matrices,
                                             const UpdateStep& step) const {
  return {.common = common_of(matrices.slice, step, options_.moment_type),
          .momentum_buffer = momentum(unit, matrices),
          .update = full_slice(unit, matrices),
          .momentum = options_.momentum};
}

void MatrixOptimizer::gather(Stream& stream, int unit) {
  if (!state(unit).placement().optimizer_sharded()) return;
  exchange(stream, [&](Stream& reduce) {
    communicators_[static_cast<std::size_t>(unit)]->all_gather(reduce, state(unit).name(),
                                                               full(unit));
  });
}

void MatrixOptimizer::broadcast(Stream& stream, int unit,
                                const std::function<Tensor(const OwnedMatrix&)>& result) {
  if (state(unit).layout().num_slices() == 1) return;
  exchange(stream, [&](Stream& reduce) {
    for (const OwnedMatrix& matrix : matrices(unit)) {
      communicators_[static_cast<std::size_t>(unit)]->broadcast(reduce, state(unit).name(),
                                                                result(matrix), matrix.owner);
    }
  });
}

void MatrixOptimizer::compute_owned(int unit, const OwnerCalls& calls) {
  const int degree = parts_->degree();
  std::vector<std::vector<const OwnedMatrix*>> of_rank(static_cast<std::size_t>(degree));
  for (const OwnedMatrix& matrix : matrices(unit)) {
    if (matrix.owner != state(unit).own_slice()) continue;
    of_rank[static_cast<std::size_t>(matrix.tensor_owner)].push_back(&matrix);
  }
  const auto part_of = [&](const OwnedMatrix& matrix) {
    return full(unit).part(matrix.offset, matrix.numel());
  };
  if (degree == 1) {
    for (const OwnedMatrix* matrix : of_rank[0]) calls.compute(*matrix, part_of(*matrix));
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
      parts_->form(state(unit).name(), matrix.part, part_of(matrix), owner);
    });
    each([&](const OwnedMatrix& matrix, int owner) {
      if (owner == parts_->tensor_rank()) calls.compute(matrix, parts_->whole(matrix.part));
    });
    each([&](const OwnedMatrix& matrix, int) { calls.hand_back(matrix); });
  }
}

// Collectives between two pieces of work of the compute stream.
template <class Collectives>
void MatrixOptimizer::exchange(Stream& stream, const Collectives& collectives) {
  stream.record(*ready_);
  rank_->reduce().wait(*ready_);
  collectives(rank_->reduce());
  rank_->reduce().record(*done_);
  stream.wait(*done_);
}

// Positions in AdamW's own buffers continue from slice to slice.
MatrixOptimizer::Slice MatrixOptimizer::split(
    const sharding::UnitState& unit, UpdatedSlice slice, std::int64_t& rest_position,
    const std::function<double(const MatrixPart&)>& ratio_of) const {
  Slice result{{slice, {}}, slice, {}, {}, {}};
  result.matrices.slice.segments.clear();
  result.rest.segments.clear();
  for (const kernels::UpdateSegment& segment : slice.segments) {
    const ParameterSpec& parameter = parameter_at(unit.spec(), segment.parameter);
    if (is_by_matrix(options_, unit.spec(), parameter)) {
      const float factor = options_.lr_factor_of(parameter);
      result.matrices.slice.segments.push_back(segment);
      result.matrices.slice.segments.back().weight_decay *= factor;
      result.matrices.ratios.push_back(
          static_cast<float>(ratio_of(part_with(parameter, segment.first_element))) * factor);
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

Tensor MatrixOptimizer::first_moment(std::size_t unit, const Slice& slice,
                                     std::size_t segment) const {
  const kernels::UpdateSegment& of = slice.rest.segments[segment];
  if (moments_[unit]) return slice.rest.part_of(moments_[unit]).part(of.first, of.count);
  return exp_avg_[unit].tensor().part(slice.rest_positions[segment], of.count);
}

Tensor MatrixOptimizer::second_moment(std::size_t unit, const Slice& slice,
                                      std::size_t segment) const {
  return exp_avg_sq_[unit].tensor().part(slice.rest_positions[segment],
                                         slice.rest.segments[segment].count);
}

// Segment by segment, since these moments may be kept for these segments only.
void MatrixOptimizer::update_rest(Stream& stream, int unit, const Slice& slice,
                                  const UpdateStep& step) const {
  kernels::UpdateCommon common = common_of(slice.rest, step, options_.moment_type);
  const float lr = step.lr * options_.adamw_lr_ratio;
  for (std::size_t i = 0; i < slice.rest.segments.size(); ++i) {
    const kernels::UpdateSegment& segment = slice.rest.segments[i];
    const ParameterGroup& rates = slice.rest_rates[i];
    common.lr = lr * rates.lr_factor;
    common.parameter = slice.rest.parameter.part(segment.first, segment.count);
    common.gradient = slice.rest.gradient.part(segment.first, segment.count);
    common.segments = {&slice.rest_alone[i], 1};
    kernels::adam_update(stream,
                         {.common = common,
                          .exp_avg = first_moment(static_cast<std::size_t>(unit), slice, i),
                          .exp_avg_sq = second_moment(static_cast<std::size_t>(unit), slice, i),
                          .decoupled_decay = true,
                          .beta1 = rates.beta1,
                          .beta2 = rates.beta2,
                          .eps = rates.eps,
                          .update_number = step.update_number});
  }
}

}  // namespace sherd::optim
