#include "optim/tensor_norms.h"

#include <algorithm>
#include <cmath>
#include <span>

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

// What a rank sends for this many parameters.
int numbers_of(std::int64_t num_parameters) {
  return static_cast<int>(2 * num_parameters * ExactSum::kNumbers);
}

std::span<const double> numbers_at(const double* sums, std::size_t index) {
  return {sums + index * ExactSum::kNumbers, ExactSum::kNumbers};
}

}  // namespace

sharding::AxisSet TensorNorms::axes(const sharding::Mesh& mesh,
                                    const std::vector<sharding::UnitPlan>& units) {
  if (mesh.num_owners() > 0) return {std::string(sharding::kOwnerAxis)};
  sharding::AxisSet axes = mesh.other_axes({std::string(sharding::kPipelineAxis)});
  if (!units.empty() && units.front().placement.replicas_apart) {
    axes.erase(std::string(sharding::kReplicateAxis));
  }
  return axes;
}

TensorNormBuffers tensor_norm_buffers(const sharding::ShardingPlan& plan,
                                      const MomentType& moments) {
  std::int64_t most = 1;
  for (const sharding::UnitPlan& unit : plan.units) {
    most = std::max(most, most_segments(unit, moments));
  }
  return {{"tensor_norms.sums", Category::kWorkspace, DType::kF64, 2 * most * ExactSum::kNumbers,
           kUpdate, Home::kMirrored},
          sharding::exchange_buffer("tensor_norms", numbers_of(count_parameters(plan.units)),
                                    plan.mesh.degree(TensorNorms::axes(plan.mesh, plan.units)))};
}

sharding::Traffic tensor_norm_traffic(const sharding::ShardingPlan& plan) {
  return sharding::exchange_traffic(
      "tensor norms", numbers_of(count_parameters(plan.units)),
      sharding::group_along(plan.mesh, TensorNorms::axes(plan.mesh, plan.units)));
}

TensorNorms::TensorNorms(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
                         const MomentType& moments)
    : units_(&units),
      num_parameters_(count_parameters(sharding::plans_of(units))),
      sums_(rank, tensor_norm_buffers({rank.mesh, sharding::plans_of(units)}, moments).sums),
      exchange_(rank, "tensor_norms", numbers_of(num_parameters_),
                TensorNorms::axes(rank.mesh, sharding::plans_of(units))),
      mine_(static_cast<std::size_t>(num_parameters_)),
      all_(mine_.size()),
      numbers_(static_cast<std::size_t>(numbers_of(num_parameters_))) {}

std::vector<TensorNorms::Pair> TensorNorms::all(
    Stream& stream, const std::vector<std::vector<UpdatedSlice>>& slices,
    const std::function<void(int, const UpdatedSlice&, const Tensor&)>& sums_of) {
  std::ranges::fill(mine_, SumPair());
  std::ranges::fill(all_, SumPair());
  for (std::size_t unit = 0; unit < slices.size(); ++unit) {
    for (const UpdatedSlice& slice : slices[unit]) {
      const sharding::UnitState& state = (*units_)[unit];
      if (slice.slice_index != state.own_slice() || !state.first_of_copies()) continue;
      sums_of(static_cast<int>(unit), slice, sums_.device());
      const std::size_t num_segments = slice.segments.size();
      sums_.to_host(stream, 0, static_cast<std::int64_t>(2 * num_segments) * ExactSum::kNumbers);
      stream.synchronize();
      const double* sums = sums_.host().as<double>();
      for (std::size_t i = 0; i < num_segments; ++i) {
        const kernels::UpdateSegment& segment = slice.segments[i];
        const ParameterSpec& parameter = parameter_at(state.spec(), segment.parameter);
        if (!parameter.place_of(segment.first_element).counts) continue;
        SumPair& pair = mine_[segment.parameter];
        pair.first.add(numbers_at(sums, i));
        pair.second.add(numbers_at(sums, num_segments + i));
      }
    }
  }
  auto to = numbers_.begin();
  for (const SumPair& pair : mine_) {
    to = std::ranges::copy(pair.first.numbers(), to).out;
    to = std::ranges::copy(pair.second.numbers(), to).out;
  }
  for (const std::span<const double> row : exchange_.all_gather("tensor norms", numbers_)) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      all_[i].first.add(numbers_at(row.data(), 2 * i));
      all_[i].second.add(numbers_at(row.data(), 2 * i + 1));
    }
  }
  std::vector<Pair> norms;
  for (const SumPair& pair : all_) {
    norms.push_back({std::sqrt(pair.first.value()), std::sqrt(pair.second.value())});
  }
  return norms;
}

}  // namespace sherd::optim
