/// LAMB and LARS, a pack at a time; the equations are in kernels/update.h.
#pragma once

#include "kernels/device_common/update.h"

namespace sherd::kernels::device_common {

template <class G, class S>
struct LambMoments {
  const G* gradient;
  Moment<S> exp_avg, exp_avg_sq;
  float beta1, beta2, fresh1, fresh2, scale;

  explicit LambMoments(const LambUpdate& args)
      : gradient(args.common.gradient.as<G>()),
        exp_avg(make_moment<S>(args.exp_avg, args.common, 0)),
        exp_avg_sq(make_moment<S>(args.exp_avg_sq, args.common, 1)),
        scale(args.common.gradient_scale) {
    const AdamConstants constants(args.beta1, args.beta2, args.eps, args.update_number);
    beta1 = constants.beta1, beta2 = constants.beta2;
    fresh1 = constants.fresh1, fresh2 = constants.fresh2;
  }

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    float g[N], m[N], v[N];
    load_wide<N>(gradient + first, g);
    exp_avg.template open<N>(first, m);
    exp_avg_sq.template open<N>(first, v);
    for (int i = 0; i < N; ++i) {
      const float grad = scale * g[i];
      m[i] = beta1 * m[i] + fresh1 * grad;
      v[i] = beta2 * v[i] + fresh2 * (grad * grad);
    }
    exp_avg.template close<N>(segment, first, m);
    exp_avg_sq.template close<N>(segment, first, v);
  }
};

/// LAMB's direction r from the moments as they are stored.
template <class S>
struct LambDirection {
  float* parameter;
  Moment<S> exp_avg, exp_avg_sq;
  float correction1, root_correction2, eps, lr;

  explicit LambDirection(const LambUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        exp_avg(make_moment<S>(args.exp_avg, args.common, 0)),
        exp_avg_sq(make_moment<S>(args.exp_avg_sq, args.common, 1)),
        eps(args.eps),
        lr(args.common.lr) {
    const AdamConstants constants(args.beta1, args.beta2, args.eps, args.update_number);
    correction1 = static_cast<float>(constants.correction1);
    root_correction2 = constants.root_correction2;
  }

  template <int N>
  SHERD_HOST_DEVICE void direction(const Segment& segment, std::int64_t first, float (&p)[N],
                                   float (&r)[N]) const {
    float m[N], v[N];
    load_wide<N>(parameter + first, p);
    exp_avg.template open<N>(first, m);
    exp_avg_sq.template open<N>(first, v);
    for (int i = 0; i < N; ++i) {
      r[i] =
          correction1 * m[i] / (sqrtf(v[i]) * root_correction2 + eps) + segment.weight_decay * p[i];
    }
  }
  /// Terms whose squares are summed.
  SHERD_HOST_DEVICE void terms(const Segment& segment, std::int64_t at, float& a, float& b) const {
    float p[1], r[1];
    direction<1>(segment, at, p, r);
    a = p[0], b = r[0];
  }
  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    const float rate = lr * segment.ratio;
    float p[N], r[N];
    direction<N>(segment, first, p, r);
    for (int i = 0; i < N; ++i) p[i] = p[i] - rate * r[i];
    store<N>(parameter + first, p);
  }
};

template <class G, class S>
struct Lars {
  float* parameter;
  const G* gradient;
  Moment<S> buffer;
  float lr, momentum, scale;

  explicit Lars(const LarsUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        gradient(args.common.gradient.as<G>()),
        buffer(make_moment<S>(args.momentum_buffer, args.common, 0)),
        lr(args.common.lr),
        momentum(args.momentum),
        scale(args.common.gradient_scale) {}

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    const float rate = lr * segment.ratio;
    float p[N], g[N], m[N];
    load_wide<N>(parameter + first, p);
    load_wide<N>(gradient + first, g);
    buffer.template open<N>(first, m);
    for (int i = 0; i < N; ++i) {
      m[i] = momentum * m[i] + rate * (scale * g[i] + segment.weight_decay * p[i]);
      p[i] = p[i] - m[i];
    }
    store<N>(parameter + first, p);
    buffer.template close<N>(segment, first, m);
  }
};

/// LARS's norms: of p and of the scaled gradient.
template <class G>
struct LarsTerms {
  const float* parameter;
  const G* gradient;
  float scale;

  explicit LarsTerms(const LarsUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        gradient(args.common.gradient.as<G>()),
        scale(args.common.gradient_scale) {}
  SHERD_HOST_DEVICE void terms(const Segment&, std::int64_t at, float& a, float& b) const {
    a = parameter[at];
    b = scale * widen(gradient[at]);
  }
};

}  // namespace sherd::kernels::device_common
