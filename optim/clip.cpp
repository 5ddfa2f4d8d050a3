#include "optim/clip.h"

#include <algorithm>
#include <span>

#include "kernels/pointwise.h"

namespace sherd::optim {
namespace {

Tensor part_of_unit(const Tensor& sums, std::size_t unit) {
  return sums.part(static_cast<std::int64_t>(unit) * ExactSum::kNumbers, ExactSum::kNumbers);
}

}  // namespace

NormBuffers gradient_norm_buffers(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t largest = 0;
  for (const sharding::UnitPlan& unit : units) {
    largest = std::max(largest, unit.layout.slice_numel());
  }
  return {{"gradient_norm.sums", Category::kWorkspace, DType::kF64,
           ExactSum::kNumbers * static_cast<std::int64_t>(units.size()), kUpdate, true},
          {"gradient_norm.workspace", Category::kWorkspace, DType::kF64,
           kernels::sum_of_squares_workspace_bytes(largest) / 8, kUpdate}};
}

GradientNorm::GradientNorm(const sharding::Rank& rank,
                           const std::vector<sharding::UnitState>& units)
    : rank_(&rank), units_(&units) {
  const NormBuffers buffers = gradient_norm_buffers(sharding::plans_of(units));
  sums_ = {rank, buffers.sums};
  workspace_ = rank.memory->acquire(buffers.workspace);
}

ExactSum GradientNorm::local_sum_of_squares() {
  Stream& stream = rank_->compute();
  for (std::size_t i = 0; i < units_->size(); ++i) {
    const sharding::UnitState& unit = (*units_)[i];
    if (!unit.trains()) continue;
    kernels::sum_of_squares(stream, unit.gradient(unit.own_slice()),
                            part_of_unit(sums_.device(), i), workspace_.tensor());
  }
  sums_.to_host(stream);
  stream.synchronize();
  ExactSum sum;
  for (std::size_t i = 0; i < units_->size(); ++i) {
    if (!(*units_)[i].trains() || !(*units_)[i].contributes_slice()) continue;
    sum.add(std::span(part_of_unit(sums_.host(), i).as<double>(), ExactSum::kNumbers));
  }
  return sum;
}

float clip_scale(float norm, float max_norm) {
  return max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

}  // namespace sherd::optim
