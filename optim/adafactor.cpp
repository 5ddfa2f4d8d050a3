#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "kernels/adafactor.h"
#include "optim/tensor_norms.h"

namespace sherd::optim {
namespace {

using kernels::AdafactorMatrix;
using kernels::AdafactorPlace;

constexpr std::int64_t kSumsPerMessage = 1024;

// The numbers of a unit, in the order of its parameters.
std::vector<AdafactorMatrix> matrices_of(const UnitSpec& unit) {
  std::vector<AdafactorMatrix> matrices;
  std::int64_t number = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const auto& shape = parameter.cut ? parameter.cut->shape : parameter.shape;
    AdafactorMatrix matrix{.columns = shape.back(), .scale = parameter.index};
    if (shape.size() > 1) {
      matrix.rows = shape[0];
      matrix.row = number;
      number += matrix.rows;
    }
    matrix.column = number;
    number += matrix.columns;
    matrices.push_back(matrix);
  }
  return matrices;
}

std::int64_t numbers_of(const UnitSpec& unit) {
  const std::vector<AdafactorMatrix> matrices = matrices_of(unit);
  return matrices.empty() ? 0 : matrices.back().column + matrices.back().columns;
}

AdafactorPlace place_of(const ParameterSpec& parameter, const AdafactorMatrix& matrix,
                        std::int64_t element) {
  const ParameterSpec::Place place = parameter.place_of(element);
  AdafactorPlace result{
      .first = element - place.first, .scale = matrix.scale, .counts = place.counts};
  if (matrix.row < 0) {
    result.columns = place.box.num_rows * place.box.num_columns;
    result.column = matrix.column + place.box.first_row;
  } else {
    result.columns = place.box.num_columns;
    result.row = matrix.row + place.box.first_row;
    result.column = matrix.column + place.box.first_column;
  }
  return result;
}

// What a rank acquires.
struct Buffers {
  std::vector<BufferSpec> variances;  // by unit
  BufferSpec sums, scales;
  std::int64_t sums_per_message = 0;
};

Buffers buffers_of(const sharding::ShardingPlan& plan) {
  Buffers buffers;
  std::int64_t most = 1, parameters = 1;
  for (const sharding::UnitPlan& unit : plan.units) {
    const std::int64_t numbers = numbers_of(unit.spec);
    buffers.variances.push_back(
        {unit.spec.name + ".exp_avg_sq", Category::kOptimizer, DType::kF32, numbers});
    most = std::max(most, numbers);
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      parameters = std::max<std::int64_t>(parameters, parameter.index + 1);
    }
  }
  buffers.sums_per_message = std::min(most, kSumsPerMessage);
  const std::int64_t messages = (most + buffers.sums_per_message - 1) / buffers.sums_per_message;
  buffers.sums = {"adafactor.sums", Category::kWorkspace, DType::kF64,
                  messages * buffers.sums_per_message * ExactSum::kNumbers, kUpdate};
  buffers.scales = {"adafactor.scales", Category::kWorkspace, DType::kF32, parameters, kUpdate};
  return buffers;
}

int numbers_per_message(const Buffers& buffers) {
  return static_cast<int>(buffers.sums_per_message * ExactSum::kNumbers);
}

class Adafactor final : public Optimizer {
 public:
  Adafactor(const OptimizerOptions& options, const sharding::Rank& rank,
            const std::vector<sharding::UnitState>& units)
      : Adafactor(options, rank, units, buffers_of({rank.mesh, sharding::plans_of(units)})) {}

  void prepare(Stream& stream, const UpdateStep& step) override {
    const double fresh = std::pow(static_cast<double>(step.update_number), options_.beta2_decay);
    for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
      if (matrices_[unit].empty()) continue;
      add_squares(stream, unit, step);
      exchange_sums(numbers_of((*units_)[unit].spec()));
      kernels::adafactor_variances(stream, {.matrices = matrices_[unit],
                                            .sums = sums_.tensor(),
                                            .variances = variances_[unit],
                                            .scales = scales_.tensor(),
                                            .fresh = fresh,
                                            .eps = options_.eps});
    }
    set_ratios(norms_.all(stream, slices_,
                          [&](int unit, const UpdatedSlice& slice, const Tensor& sums) {
                            kernels::adafactor_norms(stream, args(unit, slice, step), sums);
                          }),
               step);
  }

  void update(Stream& stream, int unit, const UpdateStep& step) override {
    std::size_t index = first_slice_[static_cast<std::size_t>(unit)];
    for (const UpdatedSlice& slice : slices_[static_cast<std::size_t>(unit)]) {
      kernels::adafactor_apply(stream, args(unit, slice, step), segment_ratios_[index++]);
    }
  }

  std::vector<MomentPiece> moment_pieces() const override {
    std::vector<MomentPiece> pieces;
    for (std::size_t unit = 0; unit < matrices_.size(); ++unit) {
      for (const AdafactorMatrix& matrix : matrices_[unit]) {
        const auto add = [&](std::string_view kind, std::int64_t first, std::int64_t count) {
          pieces.push_back({std::string(kind), 0, static_cast<std::uint32_t>(matrix.scale), 0,
                            variances_[unit].tensor().part(first, count)});
        };
        if (matrix.row >= 0) add(kRowKind, matrix.row, matrix.rows);
        add(kColumnKind, matrix.column, matrix.columns);
      }
    }
    return pieces;
  }

 private:
  Adafactor(const OptimizerOptions& options, const sharding::Rank& rank,
            const std::vector<sharding::UnitState>& units, const Buffers& buffers)
      : options_(options),
        units_(&units),
        slices_(updated_slices(units, options)),
        norms_(rank, units, options.moment_type),
        exchange_(rank, "adafactor", numbers_per_message(buffers),
                  TensorNorms::axes(rank.mesh, sharding::plans_of(units))),
        sums_(rank.acquire(buffers.sums)),
        scales_(rank.acquire(buffers.scales)) {
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      matrices_.push_back(matrices_of(units[unit].spec()));
      variances_.push_back(matrices_.back().empty() ? Buffer()
                                                    : rank.acquire(buffers.variances[unit]));
      first_slice_.push_back(places_.size());
      for (UpdatedSlice& slice : slices_[unit]) {
        std::vector<AdafactorPlace>& places = places_.emplace_back();
        for (kernels::UpdateSegment& segment : slice.segments) {
          const ParameterSpec& parameter = parameter_at(units[unit].spec(), segment.parameter);
          segment.weight_decay *= options.lr_factor_of(parameter);
          places.push_back(
              place_of(parameter, matrix_of(unit, segment.parameter), segment.first_element));
        }
        segment_ratios_.emplace_back(slice.segments.size());
      }
    }
  }

  const AdafactorMatrix& matrix_of(std::size_t unit, std::uint32_t parameter) const {
    return *std::ranges::find(matrices_[unit], parameter, &AdafactorMatrix::scale);
  }

  kernels::AdafactorUpdate args(int unit, const UpdatedSlice& slice, const UpdateStep& step) const {
    const auto index = static_cast<std::size_t>(unit);
    const auto number = static_cast<std::size_t>(&slice - slices_[index].data());
    return {.common = common_of(slice, step, options_.moment_type),
            .places = places_[first_slice_[index] + number],
            .variances = variances_[index],
            .scales = scales_,
            .eps = options_.eps};
  }

  // Of this rank's own slice, if it counts.
  void add_squares(Stream& stream, std::size_t unit, const UpdateStep& step) {
    const sharding::UnitState& state = (*units_)[unit];
    const Tensor sums = sums_.tensor();
    stream.run("adafactor_clear",
               [sums] { std::ranges::fill_n(sums.as<double>(), sums.numel, 0.0); });
    for (const UpdatedSlice& slice : slices_[unit]) {
      if (slice.slice_index != state.own_slice() || !state.first_of_copies()) continue;
      kernels::adafactor_squares(stream, args(static_cast<int>(unit), slice, step), sums);
    }
    stream.synchronize();
  }

  // Leaves each sum over all ranks, rounded, where its first number was.
  void exchange_sums(std::int64_t count) {
    double* const sums = sums_.tensor().as<double>();
    const auto per_message = static_cast<std::int64_t>(exchange_.count() / ExactSum::kNumbers);
    for (std::int64_t first = 0; first < count; first += per_message) {
      double* const mine = sums + first * ExactSum::kNumbers;
      const auto rows = exchange_.all_gather("sums of squares",
                                             {mine, static_cast<std::size_t>(exchange_.count())});
      for (std::int64_t i = 0; i < per_message; ++i) {
        const std::int64_t at = i * ExactSum::kNumbers;
        ExactSum total;
        for (const std::span<const double> row : rows) {
          total.add(row.subspan(static_cast<std::size_t>(at), ExactSum::kNumbers));
        }
        mine[at] = total.value();
      }
    }
  }

  float ratio_of(const TensorNorms::Pair& norms, const ParameterSpec& parameter,
                 const AdafactorMatrix& matrix, const UpdateStep& step) const {
    const double root = std::sqrt(static_cast<double>(matrix.rows * matrix.columns));
    const double lr = static_cast<double>(step.lr) * options_.lr_factor_of(parameter);
    const double rho = std::min(lr, 1.0 / std::sqrt(static_cast<double>(step.update_number)));
    const double size = std::max<double>(options_.min_parameter_rms, norms.first / root);
    return static_cast<float>(size * rho /
                              std::max(1.0, norms.second / (root * options_.clip_threshold)));
  }

  void set_ratios(const std::vector<TensorNorms::Pair>& norms, const UpdateStep& step) {
    for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
      std::size_t index = first_slice_[unit];
      for (const UpdatedSlice& slice : slices_[unit]) {
        std::vector<float>& ratios = segment_ratios_[index++];
        for (std::size_t i = 0; i < ratios.size(); ++i) {
          const std::uint32_t parameter = slice.segments[i].parameter;
          ratios[i] = ratio_of(norms[parameter], parameter_at((*units_)[unit].spec(), parameter),
                               matrix_of(unit, parameter), step);
        }
      }
    }
  }

  OptimizerOptions options_;
  const std::vector<sharding::UnitState>* units_;
  std::vector<std::vector<UpdatedSlice>> slices_;       // by unit
  std::vector<std::vector<AdafactorMatrix>> matrices_;  // by unit
  std::vector<std::size_t> first_slice_;                // by unit: its first in the next two
  std::vector<std::vector<AdafactorPlace>> places_;     // by slice
  std::vector<std::vector<float>> segment_ratios_;      // by slice
  TensorNorms norms_;
  sharding::Exchange exchange_;
  Buffer sums_, scales_;
  std::vector<Buffer> variances_;  // by unit
};

std::vector<BufferSpec> adafactor_buffers(const OptimizerOptions& options,
                                          const sharding::ShardingPlan& plan, int /*rank*/) {
  const TensorNormBuffers norms = tensor_norm_buffers(plan, options.moment_type);
  const Buffers own = buffers_of(plan);
  std::vector<BufferSpec> buffers = {
      norms.sums, norms.exchange, own.sums, own.scales,
      sharding::exchange_buffer("adafactor", numbers_per_message(own),
                                plan.mesh.degree(TensorNorms::axes(plan.mesh, plan.units)))};
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    if (own.variances[i].numel > 0) buffers.push_back(own.variances[i]);
  }
  return buffers;
}

sharding::Traffic adafactor_traffic(const OptimizerOptions& /*options*/,
                                    const sharding::ShardingPlan& plan, int /*rank*/) {
  const Buffers own = buffers_of(plan);
  sharding::Traffic traffic;
  std::int64_t messages = 0;
  for (const BufferSpec& unit : own.variances) {
    messages += (unit.numel + own.sums_per_message - 1) / own.sums_per_message;
  }
  const auto ranks = sharding::group_along(plan.mesh, TensorNorms::axes(plan.mesh, plan.units));
  traffic.add("sums of squares", sharding::Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(numbers_per_message(own)) * ranks.count, ranks, messages);
  traffic.add(tensor_norm_traffic(plan));
  return traffic;
}

}  // namespace

OptimizerDescriptor adafactor_descriptor() {
  return {.type = OptimizerType::kAdafactor,
          .moment_kinds = [](const OptimizerOptions&, const UnitSpec&,
                             const ParameterSpec& parameter) -> std::vector<std::string> {
            if (parameter.shape.size() > 1)
              return {std::string(kRowKind), std::string(kColumnKind)};
            return {std::string(kColumnKind)};
          },
          .buffers = adafactor_buffers,
          .traffic = adafactor_traffic,
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Adafactor>(options, rank, units);
          },
          .uneven_numels = nullptr,
          .defaults = {.eps = 1.1920928955078125e-07}};  // the distance of 1 from the next float
}

}  // namespace sherd::optim
