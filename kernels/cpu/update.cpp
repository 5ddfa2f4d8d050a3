#include "kernels/cpu/update.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"

namespace sherd::kernels::cpu {
namespace {

/// Calls `function(first, count, weight_decay)` for the parts of the segments, cut at multiples of
/// `kChunk` from the start of the slice.
template <class Function>
void parallel_segments(ThreadTeam& team, std::int64_t numel,
                       std::span<const UpdateSegment> segments, Function&& function) {
  team.parallel_for((numel + kChunk - 1) / kChunk, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kChunk;
    const std::int64_t end = std::min(numel, begin + kChunk);
    auto segment =
        std::partition_point(segments.begin(), segments.end(),
                             [=](const UpdateSegment& s) { return s.first + s.count <= begin; });
    for (; segment != segments.end() && segment->first < end; ++segment) {
      const std::int64_t first = std::max(begin, segment->first);
      const std::int64_t last = std::min(end, segment->first + segment->count);
      function(first, last - first, segment->weight_decay);
    }
  });
}

}  // namespace

void adamw_update(ThreadTeam& team, const AdamWUpdate& args) {
  auto* parameter = args.parameter.as<float>();
  const auto* gradient = args.gradient.as<float>();
  auto* exp_avg = args.exp_avg.as<float>();
  auto* exp_avg_sq = args.exp_avg_sq.as<float>();
  // What is the same for all elements, in f64 and rounded once. The corrections are multiplied:
  // one division and one root remain per element.
  const double beta1 = args.beta1, beta2 = args.beta2;
  const auto t = static_cast<double>(args.time_step);
  const float scale = args.gradient_scale, eps = args.eps;
  const float decay1 = args.beta1, decay2 = args.beta2;
  const auto fresh1 = static_cast<float>(1.0 - beta1);
  const auto fresh2 = static_cast<float>(1.0 - beta2);
  const auto rate = static_cast<float>(args.lr / (1.0 - std::pow(beta1, t)));
  const auto root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t)));

  const auto update = [=](std::int64_t first, std::int64_t count, float weight_decay) {
    const float shrink = args.lr * weight_decay;
    float* p = parameter + first;
    const float* grad = gradient + first;
    float* m = exp_avg + first;
    float* v = exp_avg_sq + first;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const float g = scale * grad[i];
      const float m_new = decay1 * m[i] + fresh1 * g;
      const float v_new = decay2 * v[i] + fresh2 * (g * g);
      m[i] = m_new;
      v[i] = v_new;
      p[i] = (p[i] - shrink * p[i]) - rate * m_new / (std::sqrt(v_new) * root_correction + eps);
    }
  };
  parallel_segments(team, args.parameter.numel, args.segments, update);
}

void sgd_update(ThreadTeam& team, const SgdUpdate& args) {
  auto* parameter = args.parameter.as<float>();
  const auto* gradient = args.gradient.as<float>();
  auto* momentum_buffer = args.momentum_buffer.as<float>();
  const float lr = args.lr, momentum = args.momentum, scale = args.gradient_scale;

  const auto update = [=](std::int64_t first, std::int64_t count, float weight_decay) {
    float* p = parameter + first;
    const float* grad = gradient + first;
    if (momentum_buffer == nullptr) {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        p[i] = p[i] - lr * (scale * grad[i] + weight_decay * p[i]);
      }
      return;
    }
    float* m = momentum_buffer + first;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      m[i] = momentum * m[i] + (scale * grad[i] + weight_decay * p[i]);
      p[i] = p[i] - lr * m[i];
    }
  };
  parallel_segments(team, args.parameter.numel, args.segments, update);
}

}  // namespace sherd::kernels::cpu
