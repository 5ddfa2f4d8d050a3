// Updates whose rate depends on whole-tensor norms: LAMB and LARS.

#include "kernels/cpu/update.h"
#include "kernels/cpu/update_blocks.h"

namespace sherd::kernels::cpu {
namespace {

/// LAMB's direction r from the moments as they are stored.
template <class S>
class LambDirection {
 public:
  explicit LambDirection(const LambUpdate& args)
      : exp_avg_(args.exp_avg, args.common, 0),
        exp_avg_sq_(args.exp_avg_sq, args.common, 1),
        correction1_(static_cast<float>(
            AdamConstants(args.beta1, args.beta2, args.update_number).correction1)),
        root_correction2_(
            AdamConstants(args.beta1, args.beta2, args.update_number).root_correction2),
        eps_(args.eps) {}

  void operator()(const float* p, float weight_decay, std::int64_t first, int count,
                  float* r) const {
    BlockScratch m_scratch, v_scratch;
    const float* m = exp_avg_.read(first, count, m_scratch);
    const float* v = exp_avg_sq_.read(first, count, v_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      r[i] =
          correction1_ * m[i] / (std::sqrt(v[i]) * root_correction2_ + eps_) + weight_decay * p[i];
    }
  }

 private:
  Moment<S> exp_avg_, exp_avg_sq_;
  float correction1_, root_correction2_, eps_;
};

}  // namespace

void lamb_moments(ThreadTeam& team, const LambUpdate& args) {
  const AdamConstants constants(args.beta1, args.beta2, args.update_number);
  const float beta1 = args.beta1, beta2 = args.beta2, scale = args.common.gradient_scale;
  const float fresh1 = constants.fresh1, fresh2 = constants.fresh2;
  update_blocks<2>(team, args.common, {args.exp_avg, args.exp_avg_sq},
                   [&](const UpdateBlock<2>& block) {
                     const float* grad = block.gradient;
                     float *m = block.moment[0], *v = block.moment[1];
#pragma omp simd
                     for (int i = 0; i < block.count; ++i) {
                       const float g = scale * grad[i];
                       m[i] = beta1 * m[i] + fresh1 * g;
                       v[i] = beta2 * v[i] + fresh2 * (g * g);
                     }
                   });
}

void lamb_norms(ThreadTeam& team, const LambUpdate& args, Tensor sums) {
  const UpdateCommon& common = args.common;
  const float* parameter = common.parameter.as<float>();
  dispatch_update(common, args.exp_avg.dtype, [&](auto, auto moment_type) {
    const LambDirection<decltype(moment_type)> direction(args);
    segment_sums(
        team, common, sums,
        [&](const UpdateSegment& segment, std::int64_t first, int count, float* a, float* b) {
          std::copy_n(parameter + first, count, a);
          direction(parameter + first, segment.weight_decay, first, count, b);
        });
  });
}

void lamb_apply(ThreadTeam& team, const LambUpdate& args, std::span<const float> ratios) {
  const UpdateCommon& common = args.common;
  float* parameter = common.parameter.as<float>();
  dispatch_update(common, args.exp_avg.dtype, [&](auto, auto moment_type) {
    const LambDirection<decltype(moment_type)> direction(args);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const float rate = common.lr * ratios[index];
      alignas(64) float r[kBlock];
      float* p = parameter + first;
      direction(p, common.segments[index].weight_decay, first, count, r);
#pragma omp simd
      for (int i = 0; i < count; ++i) p[i] = p[i] - rate * r[i];
    });
  });
}

void lars_norms(ThreadTeam& team, const LarsUpdate& args, Tensor sums) {
  const UpdateCommon& common = args.common;
  const float* parameter = common.parameter.as<float>();
  const float scale = common.gradient_scale;
  dispatch_float(common.gradient.dtype, [&](auto gradient_type) {
    using G = decltype(gradient_type);
    const G* gradient = common.gradient.as<G>();
    segment_sums(team, common, sums,
                 [&](const UpdateSegment&, std::int64_t first, int count, float* a, float* b) {
                   BlockScratch scratch;
                   const float* grad = load_block(gradient + first, count, scratch);
                   std::copy_n(parameter + first, count, a);
                   for (int i = 0; i < count; ++i) b[i] = scale * grad[i];
                 });
  });
}

void lars_apply(ThreadTeam& team, const LarsUpdate& args, std::span<const float> ratios) {
  const UpdateCommon& common = args.common;
  const float momentum = args.momentum, scale = common.gradient_scale;
  update_blocks<1>(team, common, {args.momentum_buffer}, [&](const UpdateBlock<1>& block) {
    const float rate = common.lr * ratios[block.index], weight_decay = block.segment.weight_decay;
    const float* grad = block.gradient;
    float *m = block.moment[0], *p = block.parameter;
#pragma omp simd
    for (int i = 0; i < block.count; ++i) {
      m[i] = momentum * m[i] + rate * (scale * grad[i] + weight_decay * p[i]);
      p[i] = p[i] - m[i];
    }
  });
}

}  // namespace sherd::kernels::cpu
