#include "optim/tensor_norms.h"

#include <algorithm>
#include <cmath>

namespace sherd::optim {
namespace {

std::int64_t count_parameters(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t count = 0;
  for (const sharding::UnitPlan& unit : units) {
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      count = std::max<std::int64_t>(count, parameter.index + 1);
    }
  }
  return count;
}

}  // namespace

TensorNormBuffers tensor_norm_buffers(const sharding::ShardingPlan& plan) {
  std::int64_t most = 1;
  for (const sharding::UnitPlan& unit : plan.units) most = std::max(most, most_segments(unit));
  return {
      {"tensor_norms.sums", Category::kWorkspace, DType::kF64, 2 * most, kUpdate, true},
      sharding::exchange_buffer("tensor_norms", static_cast<int>(2 * count_parameters(plan.units)),
                                plan.mesh.world_size())};
}

sharding::Traffic tensor_norm_traffic(const sharding::ShardingPlan& plan) {
  return sharding::exchange_traffic(
      "tensor norms", static_cast<int>(2 * count_parameters(plan.units)), plan.mesh.world_size());
}

TensorNorms::TensorNorms(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units)
    : units_(&units),
      num_parameters_(count_parameters(sharding::plans_of(units))),
      sums_(rank, tensor_norm_buffers({rank.mesh, sharding::plans_of(units)}).sums),
      exchange_(rank, "tensor_norms", static_cast<int>(2 * num_parameters_)) {}

std::vector<TensorNorms::Pair> TensorNorms::all(
    Stream& stream, const std::vector<std::vector<UpdatedSlice>>& slices,
    const std::function<void(int, const UpdatedSlice&, const Tensor&)>& sums_of) {
  std::vector<double> mine(static_cast<std::size_t>(2 * num_parameters_), 0.0);
  for (std::size_t unit = 0; unit < slices.size(); ++unit) {
    for (const UpdatedSlice& slice : slices[unit]) {
      const sharding::UnitState& state = (*units_)[unit];
      if (slice.slice_index != state.own_slice() || !state.contributes_slice()) continue;
      sums_of(static_cast<int>(unit), slice, sums_.device());
      const std::size_t num_segments = slice.segments.size();
      sums_.to_host(stream, 0, static_cast<std::int64_t>(2 * num_segments));
      stream.synchronize();
      const double* sums = sums_.host().as<double>();
      for (std::size_t i = 0; i < num_segments; ++i) {
        mine[2 * slice.segments[i].parameter] += sums[i];
        mine[2 * slice.segments[i].parameter + 1] += sums[num_segments + i];
      }
    }
  }
  std::vector<Pair> norms(static_cast<std::size_t>(num_parameters_));
  for (const std::vector<double>& row : exchange_.all_gather("tensor norms", mine)) {
    for (std::size_t i = 0; i < norms.size(); ++i) {
      norms[i].first += row[2 * i];
      norms[i].second += row[2 * i + 1];
    }
  }
  for (Pair& pair : norms) pair = {std::sqrt(pair.first), std::sqrt(pair.second)};
  return norms;
}

}  // namespace sherd::optim
