#include "optim/average.h"

#include "kernels/pointwise.h"
#include "optim/slices.h"

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

struct WeightAverage::State {
  AverageOptions options;
  std::vector<std::vector<UpdatedSlice>> slices;
  std::vector<Buffer> averages;  // by unit

  Tensor of(std::size_t unit, const UpdatedSlice& slice) const {
    return slice.part_of(averages[unit]);
  }
};

WeightAverage::WeightAverage(const AverageOptions& options, const OptimizerOptions& optimizer,
                             const sharding::Rank& rank,
                             const std::vector<sharding::UnitState>& units)
    : state_(new State{options, updated_slices(units, optimizer),
                       acquire_moments(rank, units, kAverageKind, kType)}) {
  begin(rank.compute());
}

WeightAverage::WeightAverage(WeightAverage&&) noexcept = default;
WeightAverage::~WeightAverage() = default;

void WeightAverage::begin(Stream& stream) {
  for (std::size_t unit = 0; unit < state_->slices.size(); ++unit) {
    for (const UpdatedSlice& slice : state_->slices[unit]) {
      kernels::cast(stream, slice.parameter, state_->of(unit, slice));
    }
  }
}

void WeightAverage::update(Stream& stream, int unit, std::int64_t update_number) {
  const std::optional<float> weight = state_->options.weight(update_number);
  if (!weight) return;
  const auto index = static_cast<std::size_t>(unit);
  for (const UpdatedSlice& slice : state_->slices[index]) {
    kernels::move_towards(stream, slice.parameter, *weight, state_->of(index, slice));
  }
}

void WeightAverage::exchange(Stream& stream, int unit) {
  const auto index = static_cast<std::size_t>(unit);
  for (const UpdatedSlice& slice : state_->slices[index]) {
    kernels::exchange(stream, slice.parameter, state_->of(index, slice));
  }
}

std::vector<MomentPiece> WeightAverage::pieces() const {
  std::vector<MomentPiece> pieces;
  for (std::size_t unit = 0; unit < state_->slices.size(); ++unit) {
    for (const UpdatedSlice& slice : state_->slices[unit]) {
      add_moment_pieces(slice, kAverageKind, state_->of(unit, slice), pieces);
    }
  }
  return pieces;
}

}  // namespace sherd::optim
