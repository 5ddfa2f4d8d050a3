#include "optim/average.h"

#include "kernels/pointwise.h"

namespace sherd::optim {
namespace {

const MomentType kType{.dtype = DType::kF32};

}  // namespace

std::optional<float> AverageOptions::weight(std::int64_t update_number) const {
  const std::int64_t since = update_number - start_step;
  if (since <= 1) return 1.0f;
  if ((since - 1) % interval != 0) return std::nullopt;
  const std::int64_t k = (since - 1) / interval + 1;
  return static_cast<float>(type == AverageType::kEma ? 1.0 - decay : 1.0 / static_cast<double>(k));
}

std::vector<BufferSpec> WeightAverage::buffers(const AverageOptions& options,
                                               const sharding::ShardingPlan& plan) {
  if (!options.active()) return {};
  return moment_buffers(plan, {kAverageKind}, kType);
}

WeightAverage::WeightAverage(const AverageOptions& options, const OptimizerOptions& optimizer,
                             const sharding::Rank& rank,
                             const std::vector<sharding::UnitState>& units)
    : options_(options),
      slices_(updated_slices(units, optimizer)),
      averages_(acquire_moments(rank, units, kAverageKind, kType)) {
  begin(rank.compute());
}

void WeightAverage::begin(Stream& stream) {
  for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
    for (const UpdatedSlice& slice : slices_[unit]) {
      kernels::cast(stream, slice.parameter, slice.part_of(averages_[unit]));
    }
  }
}

void WeightAverage::update(Stream& stream, int unit, std::int64_t update_number) {
  const std::optional<float> weight = options_.weight(update_number);
  if (!weight) return;
  for (const UpdatedSlice& slice : slices_[static_cast<std::size_t>(unit)]) {
    kernels::move_towards(stream, slice.parameter, *weight,
                          slice.part_of(averages_[static_cast<std::size_t>(unit)]));
  }
}

void WeightAverage::exchange(Stream& stream, int unit) {
  for (const UpdatedSlice& slice : slices_[static_cast<std::size_t>(unit)]) {
    kernels::exchange(stream, slice.parameter,
                      slice.part_of(averages_[static_cast<std::size_t>(unit)]));
  }
}

std::vector<MomentPiece> WeightAverage::pieces() const {
  std::vector<MomentPiece> pieces;
  for (std::size_t unit = 0; unit < slices_.size(); ++unit) {
    for (const UpdatedSlice& slice : slices_[unit]) {
      add_moment_pieces(slice, kAverageKind, slice.part_of(averages_[unit]), pieces);
    }
  }
  return pieces;
}

}  // namespace sherd::optim
