#include "optim/clip.h"

#include <algorithm>
#include <span>

#include "kernels/pointwise.h"

namespace sherd::optim {
namespace {

Tensor sum_number(const Tensor& sums, std::int64_t number) {
  return sums.part(number * ExactSum::kNumbers, ExactSum::kNumbers);
}

}  // namespace

NormBuffers gradient_norm_buffers(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t largest = 0, num_ranges = 0;
  for (const sharding::UnitPlan& unit : units) {
    largest = std::max(largest, unit.layout.slice_numel());
    num_ranges += std::max<std::int64_t>(1, std::ssize(sharding::counted_ranges(unit)));
  }
  return {{"gradient_norm.sums", Category::kWorkspace, DType::kF64, ExactSum::kNumbers * num_ranges,
           kUpdate, Home::kMirrored},
          {"gradient_norm.workspace", Category::kWorkspace, DType::kF64,
           kernels::sum_of_squares_workspace_bytes(largest) / 8, kUpdate}};
}

GradientNorm::GradientNorm(const sharding::Rank& rank,
                           const std::vector<sharding::UnitState>& units)
    : rank_(&rank), units_(&units) {
  const NormBuffers buffers = gradient_norm_buffers(sharding::plans_of(units));
  sums_ = {rank, buffers.sums};
  workspace_ = rank.acquire(buffers.workspace);
}

ExactSum GradientNorm::local_sum_of_squares() {
  Stream& stream = rank_->compute();
  std::int64_t num_sums = 0;
  for (const sharding::UnitState& unit : *units_) {
    if (!unit.trains() || !unit.contributes_slice()) continue;
    const Tensor gradient = unit.gradient(unit.own_slice());
    for (const auto& [first, count] : unit.counted_ranges()) {
      kernels::sum_of_squares(stream, gradient.part(first, count),
                              sum_number(sums_.device(), num_sums++), workspace_.tensor());
    }
  }
  if (num_sums > 0) sums_.to_host(stream, 0, num_sums * ExactSum::kNumbers);
  stream.synchronize();
  ExactSum sum;
  for (std::int64_t i = 0; i < num_sums; ++i) {
    sum.add(std::span(sum_number(sums_.host(), i).as<double>(), ExactSum::kNumbers));
  }
  return sum;
}

float clip_scale(float norm, float max_norm) {
  return max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

}  // namespace sherd::optim
