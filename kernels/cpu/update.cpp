// Updates that need nothing but the slice: Adam, SGD, Lion, and the element-wise
// parts of Muon and Dion.

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
  update_blocks<2, true>(
      team, common, {args.exp_avg, args.exp_avg_sq}, [&](const UpdateBlock<2>& block) {
        const float decay = block.segment.weight_decay;
        const float coupled = args.decoupled_decay ? 0.0f : decay;
        const float shrink = args.decoupled_decay ? common.lr * decay : 0.0f;
        const float* grad = block.gradient;
        float *m = block.moment[0], *v = block.moment[1], *p = block.parameter;
#pragma omp simd
        for (int i = 0; i < block.count; ++i) {
          const float g = scale * grad[i] + coupled * p[i];
          const float m_new = beta1 * m[i] + fresh1 * g;
          const float v_new = beta2 * v[i] + fresh2 * (g * g);
          m[i] = m_new;
          v[i] = v_new;
          p[i] = (p[i] - shrink * p[i]) - rate * m_new / (std::sqrt(v_new) * root_correction + eps);
        }
        round_block(common, block.first, block.count);
      });
}

namespace {

void sgd_without_momentum(ThreadTeam& team, const UpdateCommon& common) {
  const float lr = common.lr, scale = common.gradient_scale;
  float* parameter = common.parameter.as<float>();
  dispatch_float(common.gradient.dtype, [&]<class G>(G) {
    const G* gradient = common.gradient.as<G>();
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const float weight_decay = common.segments[index].weight_decay;
      BlockScratch scratch;
      const float* grad = load_block(gradient + first, count, scratch);
      float* p = parameter + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) p[i] = p[i] - lr * (scale * grad[i] + weight_decay * p[i]);
      round_block(common, first, count);
    });
  });
}

}  // namespace

void sgd_update(ThreadTeam& team, const SgdUpdate& args) {
  const UpdateCommon& common = args.common;
  if (!args.momentum_buffer) return sgd_without_momentum(team, common);
  const float lr = common.lr, momentum = args.momentum, scale = common.gradient_scale;
  update_blocks<1>(team, common, {args.momentum_buffer}, [&](const UpdateBlock<1>& block) {
    const float weight_decay = block.segment.weight_decay;
    const float* grad = block.gradient;
    float *m = block.moment[0], *p = block.parameter;
#pragma omp simd
    for (int i = 0; i < block.count; ++i) {
      m[i] = momentum * m[i] + (scale * grad[i] + weight_decay * p[i]);
      p[i] = p[i] - lr * m[i];
    }
    round_block(common, block.first, block.count);
  });
}

void lion_update(ThreadTeam& team, const LionUpdate& args) {
  const UpdateCommon& common = args.common;
  const float lr = common.lr, scale = common.gradient_scale;
  const float beta1 = args.beta1, beta2 = args.beta2;
  const auto fresh1 = static_cast<float>(1.0 - static_cast<double>(beta1));
  const auto fresh2 = static_cast<float>(1.0 - static_cast<double>(beta2));
  update_blocks<1, true>(team, common, {args.exp_avg}, [&](const UpdateBlock<1>& block) {
    const float weight_decay = block.segment.weight_decay;
    const float* grad = block.gradient;
    float *m = block.moment[0], *p = block.parameter;
#pragma omp simd
    for (int i = 0; i < block.count; ++i) {
      const float g = scale * grad[i];
      const float direction = beta1 * m[i] + fresh1 * g;
      const float sign =
          static_cast<float>(direction > 0.0f) - static_cast<float>(direction < 0.0f);
      p[i] = p[i] - lr * (sign + weight_decay * p[i]);
      m[i] = beta2 * m[i] + fresh2 * g;
    }
    round_block(common, block.first, block.count);
  });
}

void muon_momentum(ThreadTeam& team, const MuonUpdate& args) {
  const float momentum = args.momentum, scale = args.common.gradient_scale;
  const auto fresh = static_cast<float>(1.0 - static_cast<double>(momentum));
  float* update = args.update.as<float>();
  update_blocks<1>(team, args.common, {args.momentum_buffer}, [&](const UpdateBlock<1>& block) {
    const float* grad = block.gradient;
    float *m = block.moment[0], *u = update + block.first;
#pragma omp simd
    for (int i = 0; i < block.count; ++i) {
      const float g = scale * grad[i];
      m[i] = momentum * m[i] + fresh * g;
      u[i] = fresh * g + momentum * m[i];
    }
  });
}

void dion_momentum(ThreadTeam& team, const MuonUpdate& args) {
  const float scale = args.common.gradient_scale;
  float* update = args.update.as<float>();
  update_blocks<1>(team, args.common, {args.momentum_buffer}, [&](const UpdateBlock<1>& block) {
    const float* grad = block.gradient;
    float *m = block.moment[0], *u = update + block.first;
#pragma omp simd
    for (int i = 0; i < block.count; ++i) {
      m[i] += scale * grad[i];
      u[i] = m[i];
    }
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
