// Updates that need nothing but the slice: Adam, SGD, Lion, and Muon's element-wise parts.

#include "kernels/cpu/update.h"

#include "kernels/cpu/update_blocks.h"

namespace sherd::kernels::cpu {

void adam_update(ThreadTeam& team, const AdamUpdate& args) {
  const UpdateCommon& common = args.common;
  const AdamConstants constants(args.beta1, args.beta2, args.update_number);
  const auto rate = static_cast<float>(common.lr * constants.correction1);
  const float beta1 = args.beta1, beta2 = args.beta2, eps = args.eps;
  const float fresh1 = constants.fresh1, fresh2 = constants.fresh2;
  const float root_correction = constants.root_correction2, scale = common.gradient_scale;
  float* parameter = common.parameter.as<float>();
  dispatch_update(common, args.exp_avg.dtype, [&](auto gradient_type, auto moment_type) {
    using G = decltype(gradient_type);
    using S = decltype(moment_type);
    const G* gradient = common.gradient.as<G>();
    const Moment<S> exp_avg(args.exp_avg, common, 0), exp_avg_sq(args.exp_avg_sq, common, 1);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const UpdateSegment& segment = common.segments[index];
      const float coupled = args.decoupled_decay ? 0.0f : segment.weight_decay;
      const float shrink = args.decoupled_decay ? common.lr * segment.weight_decay : 0.0f;
      BlockScratch gradient_scratch, m_scratch, v_scratch;
      const float* grad = load_block(gradient + first, count, gradient_scratch);
      float* m = exp_avg.open(first, count, m_scratch);
      float* v = exp_avg_sq.open(first, count, v_scratch);
      float* p = parameter + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float g = scale * grad[i] + coupled * p[i];
        const float m_new = beta1 * m[i] + fresh1 * g;
        const float v_new = beta2 * v[i] + fresh2 * (g * g);
        m[i] = m_new;
        v[i] = v_new;
        p[i] = (p[i] - shrink * p[i]) - rate * m_new / (std::sqrt(v_new) * root_correction + eps);
      }
      exp_avg.close(segment, first, count, m_scratch);
      exp_avg_sq.close(segment, first, count, v_scratch);
      round_block(common, first, count);
    });
  });
}

void sgd_update(ThreadTeam& team, const SgdUpdate& args) {
  const UpdateCommon& common = args.common;
  const float lr = common.lr, momentum = args.momentum, scale = common.gradient_scale;
  float* parameter = common.parameter.as<float>();
  const bool has_buffer = static_cast<bool>(args.momentum_buffer);
  dispatch_update(common, args.momentum_buffer.dtype, [&](auto gradient_type, auto moment_type) {
    using G = decltype(gradient_type);
    using S = decltype(moment_type);
    const G* gradient = common.gradient.as<G>();
    const Moment<S> buffer(args.momentum_buffer, common, 0);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const UpdateSegment& segment = common.segments[index];
      const float weight_decay = segment.weight_decay;
      BlockScratch gradient_scratch, m_scratch;
      const float* grad = load_block(gradient + first, count, gradient_scratch);
      float* p = parameter + first;
      if (!has_buffer) {
#pragma omp simd
        for (int i = 0; i < count; ++i) p[i] = p[i] - lr * (scale * grad[i] + weight_decay * p[i]);
        return round_block(common, first, count);
      }
      float* m = buffer.open(first, count, m_scratch);
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        m[i] = momentum * m[i] + (scale * grad[i] + weight_decay * p[i]);
        p[i] = p[i] - lr * m[i];
      }
      buffer.close(segment, first, count, m_scratch);
      round_block(common, first, count);
    });
  });
}

void lion_update(ThreadTeam& team, const LionUpdate& args) {
  const UpdateCommon& common = args.common;
  const float lr = common.lr, scale = common.gradient_scale;
  const float beta1 = args.beta1, beta2 = args.beta2;
  const auto fresh1 = static_cast<float>(1.0 - static_cast<double>(beta1));
  const auto fresh2 = static_cast<float>(1.0 - static_cast<double>(beta2));
  float* parameter = common.parameter.as<float>();
  dispatch_update(common, args.exp_avg.dtype, [&](auto gradient_type, auto moment_type) {
    using G = decltype(gradient_type);
    using S = decltype(moment_type);
    const G* gradient = common.gradient.as<G>();
    const Moment<S> exp_avg(args.exp_avg, common, 0);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const UpdateSegment& segment = common.segments[index];
      const float weight_decay = segment.weight_decay;
      BlockScratch gradient_scratch, m_scratch;
      const float* grad = load_block(gradient + first, count, gradient_scratch);
      float* m = exp_avg.open(first, count, m_scratch);
      float* p = parameter + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float g = scale * grad[i];
        const float direction = beta1 * m[i] + fresh1 * g;
        const float sign =
            static_cast<float>(direction > 0.0f) - static_cast<float>(direction < 0.0f);
        p[i] = p[i] - lr * (sign + weight_decay * p[i]);
        m[i] = beta2 * m[i] + fresh2 * g;
      }
      exp_avg.close(segment, first, count, m_scratch);
      round_block(common, first, count);
    });
  });
}

void muon_momentum(ThreadTeam& team, const MuonUpdate& args) {
  const UpdateCommon& common = args.common;
  const float momentum = args.momentum, scale = common.gradient_scale;
  const auto fresh = static_cast<float>(1.0 - static_cast<double>(momentum));
  float* update = args.update.as<float>();
  dispatch_update(common, args.momentum_buffer.dtype, [&](auto gradient_type, auto moment_type) {
    using G = decltype(gradient_type);
    using S = decltype(moment_type);
    const G* gradient = common.gradient.as<G>();
    const Moment<S> buffer(args.momentum_buffer, common, 0);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      BlockScratch gradient_scratch, m_scratch;
      const float* grad = load_block(gradient + first, count, gradient_scratch);
      float* m = buffer.open(first, count, m_scratch);
      float* u = update + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float g = scale * grad[i];
        m[i] = momentum * m[i] + fresh * g;
        u[i] = fresh * g + momentum * m[i];
      }
      buffer.close(common.segments[index], first, count, m_scratch);
    });
  });
}

void muon_apply(ThreadTeam& team, const MuonUpdate& args, std::span<const float> ratios) {
  const UpdateCommon& common = args.common;
  float* parameter = common.parameter.as<float>();
  const float* update = args.update.as<float>();
  parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
    const float shrink = common.lr * common.segments[index].weight_decay;
    const float rate = common.lr * ratios[index];
    float* p = parameter + first;
    const float* u = update + first;
#pragma omp simd
    for (int i = 0; i < count; ++i) p[i] = (p[i] - shrink * p[i]) - rate * u[i];
  });
}

}  // namespace sherd::kernels::cpu
