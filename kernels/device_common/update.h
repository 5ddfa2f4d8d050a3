/// One optimizer step over a slice's segments, a pack at a time; the equations are in
/// kernels/update.h. The constants are formed on the host as the CPU form does, so the bits agree.
///
/// A launch carries its segments by value, up to kMaxSegments; blocks take them chunk by chunk.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/device_common/dropout.h"
#include "kernels/device_common/number.h"
#include "kernels/device_common/walk.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/update.h"

namespace sherd::kernels::device_common {

inline constexpr int kMaxSegments = 64;
inline constexpr std::int64_t kSegmentChunk = 8192;  ///< elements of one block

struct Segment {
  std::int64_t first = 0, count = 0, first_element = 0;
  float weight_decay = 0.0f, ratio = 0.0f;
  std::uint32_t parameter = 0;
};

/// Some of a slice's segments, and where the blocks of each begin.
struct SegmentTable {
  Segment segment[kMaxSegments];
  std::int64_t first_block[kMaxSegments + 1];
  int count = 0;

  std::int64_t num_blocks() const { return first_block[count]; }
};

/// Joins adjacent segments that are contiguous in their parameter. CPUs keep them separate so that
/// threads can share them. For updates without per-segment values.
inline std::vector<UpdateSegment> join_neighbours(std::span<const UpdateSegment> segments) {
  std::vector<UpdateSegment> joined;
  for (const UpdateSegment& next : segments) {
    if (!joined.empty()) {
      UpdateSegment& last = joined.back();
      if (last.parameter == next.parameter && last.first + last.count == next.first &&
          last.first_element + last.count == next.first_element &&
          last.random_shift == next.random_shift && last.weight_decay == next.weight_decay) {
        last.count += next.count;
        continue;
      }
    }
    joined.push_back(next);
  }
  return joined;
}

/// `ratios` may be empty; otherwise one per segment. segments.size() <= kMaxSegments.
inline SegmentTable make_segment_table(std::span<const UpdateSegment> segments,
                                       std::span<const float> ratios) {
  SegmentTable table;
  table.count = static_cast<int>(segments.size());
  std::int64_t blocks = 0;
  for (int i = 0; i < table.count; ++i) {
    const UpdateSegment& from = segments[i];
    table.segment[i] = {from.first,
                        from.count,
                        from.first_element + from.random_shift,
                        from.weight_decay,
                        ratios.empty() ? 0.0f : ratios[i],
                        from.parameter};
    table.first_block[i] = blocks;
    blocks += ceil_div(from.count, kSegmentChunk);
  }
  table.first_block[table.count] = blocks;
  return table;
}

/// Calls body.apply<N>(segment, first) for the packs of this thread of this block. N > 1 requires
/// every segment to start at a multiple of N.
template <int N, class Body>
SHERD_HOST_DEVICE void walk_segments(const SegmentTable& table, std::int64_t block, int thread,
                                     int num_threads, const Body& body) {
  int index = 0;
  while (table.first_block[index + 1] <= block) ++index;
  const Segment& segment = table.segment[index];
  const std::int64_t begin = (block - table.first_block[index]) * kSegmentChunk;
  const std::int64_t rest = segment.count - begin;
  const std::int64_t count = rest < kSegmentChunk ? rest : kSegmentChunk;
  const std::int64_t packs = count / N;
  for (std::int64_t i = thread; i < packs; i += num_threads) {
    body.template apply<N>(segment, segment.first + begin + i * N);
  }
  if constexpr (N > 1) {
    const std::int64_t left = packs * N + thread;
    if (left < count) body.template apply<1>(segment, segment.first + begin + left);
  }
}

/// A moment in storage type S.
template <class S>
struct Moment {
  S* data = nullptr;
  MomentRounding rounding;
  std::uint32_t kind = 0;

  template <int N>
  SHERD_HOST_DEVICE void open(std::int64_t first, float (&m)[N]) const {
    load_wide<N>(data + first, m);
  }
  template <int N>
  SHERD_HOST_DEVICE void close(const Segment& segment, std::int64_t first,
                               const float (&m)[N]) const {
    if constexpr (sizeof(S) == 2) {
      if (rounding.stochastic) return close_stochastic<N>(segment, first, m);
    }
    store_narrow<N>(data + first, m);
  }

 private:
  template <int N>
  SHERD_HOST_DEVICE void close_stochastic(const Segment& segment, std::int64_t first,
                                          const float (&m)[N]) const {
    RandomAddress address = rounding.address;
    address.site = 4 * segment.parameter + kind;
    std::uint32_t word[N];
    random_words<N>(address, segment.first_element + (first - segment.first), word);
    S out[N];
    for (int i = 0; i < N; ++i) {
      const std::uint32_t bits = bits_of(m[i]);
      out[i].bits =
          is_finite_f32(bits) ? round_stochastically(bits, word[i]) : narrow<S>(m[i]).bits;
    }
    store<N>(data + first, out);
  }
};

template <class S>
Moment<S> make_moment(const Tensor& tensor, const UpdateCommon& common, std::uint32_t kind) {
  return {tensor.as<S>(), common.rounding, kind};
}

/// Where updated parameters also go, in 16 bits; nowhere if both are null.
struct RoundedParameters {
  BFloat16* bf16 = nullptr;
  Float16* f16 = nullptr;

  explicit RoundedParameters(const UpdateCommon& common) {
    if (!common.rounded) return;
    if (common.rounded.dtype == DType::kBF16) {
      bf16 = common.rounded.as<BFloat16>();
    } else {
      f16 = common.rounded.as<Float16>();
    }
  }
  template <int N>
  SHERD_HOST_DEVICE void store(std::int64_t first, const float (&p)[N]) const {
    if (bf16 != nullptr) store_narrow<N>(bf16 + first, p);
    if (f16 != nullptr) store_narrow<N>(f16 + first, p);
  }
};

/// Constants of an Adam or LAMB step, computed in f64 and rounded once.
struct AdamConstants {
  float beta1, beta2, fresh1, fresh2, root_correction2, eps;
  double correction1;

  AdamConstants(float b1, float b2, float epsilon, std::int64_t update_number)
      : beta1(b1),
        beta2(b2),
        fresh1(static_cast<float>(1.0 - static_cast<double>(b1))),
        fresh2(static_cast<float>(1.0 - static_cast<double>(b2))),
        root_correction2(static_cast<float>(
            1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(b2),
                                           static_cast<double>(update_number))))),
        eps(epsilon),
        correction1(
            1.0 / (1.0 - std::pow(static_cast<double>(b1), static_cast<double>(update_number)))) {}
};

template <class G, class S>
struct Adam {
  float* parameter;
  RoundedParameters rounded;
  const G* gradient;
  Moment<S> exp_avg, exp_avg_sq;
  float beta1, beta2, fresh1, fresh2, root_correction2, eps, rate, lr, scale;
  bool decoupled;

  explicit Adam(const AdamUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        rounded(args.common),
        gradient(args.common.gradient.as<G>()),
        exp_avg(make_moment<S>(args.exp_avg, args.common, 0)),
        exp_avg_sq(make_moment<S>(args.exp_avg_sq, args.common, 1)),
        lr(args.common.lr),
        scale(args.common.gradient_scale),
        decoupled(args.decoupled_decay) {
    const AdamConstants constants(args.beta1, args.beta2, args.eps, args.update_number);
    beta1 = constants.beta1, beta2 = constants.beta2;
    fresh1 = constants.fresh1, fresh2 = constants.fresh2;
    root_correction2 = constants.root_correction2, eps = constants.eps;
    rate = static_cast<float>(lr * constants.correction1);
  }

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    float p[N], g[N], m[N], v[N];
    load_wide<N>(parameter + first, p);
    load_wide<N>(gradient + first, g);
    exp_avg.template open<N>(first, m);
    exp_avg_sq.template open<N>(first, v);
    for (int i = 0; i < N; ++i) step(segment, g[i], p[i], m[i], v[i]);
    store<N>(parameter + first, p);
    rounded.store<N>(first, p);
    exp_avg.template close<N>(segment, first, m);
    exp_avg_sq.template close<N>(segment, first, v);
  }
  SHERD_HOST_DEVICE void step(const Segment& segment, float g, float& p, float& m, float& v) const {
    const float coupled = decoupled ? 0.0f : segment.weight_decay;
    const float shrink = decoupled ? lr * segment.weight_decay : 0.0f;
    const float grad = scale * g + coupled * p;
    m = beta1 * m + fresh1 * grad;
    v = beta2 * v + fresh2 * (grad * grad);
    p = (p - shrink * p) - rate * m / (sqrtf(v) * root_correction2 + eps);
  }
};

template <class G, class S>
struct Sgd {
  float* parameter;
  RoundedParameters rounded;
  const G* gradient;
  Moment<S> buffer;
  float lr, momentum, scale;

  explicit Sgd(const SgdUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        rounded(args.common),
        gradient(args.common.gradient.as<G>()),
        buffer(make_moment<S>(args.momentum_buffer, args.common, 0)),
        lr(args.common.lr),
        momentum(args.momentum),
        scale(args.common.gradient_scale) {}

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    float p[N], g[N], m[N];
    load_wide<N>(parameter + first, p);
    load_wide<N>(gradient + first, g);
    for (int i = 0; i < N; ++i) g[i] = scale * g[i] + segment.weight_decay * p[i];
    if (buffer.data == nullptr) {
      for (int i = 0; i < N; ++i) p[i] = p[i] - lr * g[i];
    } else {
      buffer.template open<N>(first, m);
      for (int i = 0; i < N; ++i) {
        m[i] = momentum * m[i] + g[i];
        p[i] = p[i] - lr * m[i];
      }
      buffer.template close<N>(segment, first, m);
    }
    store<N>(parameter + first, p);
    rounded.store<N>(first, p);
  }
};

template <class G, class S>
struct Lion {
  float* parameter;
  RoundedParameters rounded;
  const G* gradient;
  Moment<S> exp_avg;
  float lr, scale, beta1, beta2, fresh1, fresh2;

  explicit Lion(const LionUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        rounded(args.common),
        gradient(args.common.gradient.as<G>()),
        exp_avg(make_moment<S>(args.exp_avg, args.common, 0)),
        lr(args.common.lr),
        scale(args.common.gradient_scale),
        beta1(args.beta1),
        beta2(args.beta2),
        fresh1(static_cast<float>(1.0 - static_cast<double>(args.beta1))),
        fresh2(static_cast<float>(1.0 - static_cast<double>(args.beta2))) {}

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    float p[N], g[N], m[N];
    load_wide<N>(parameter + first, p);
    load_wide<N>(gradient + first, g);
    exp_avg.template open<N>(first, m);
    for (int i = 0; i < N; ++i) step(segment, g[i], p[i], m[i]);
    store<N>(parameter + first, p);
    rounded.store<N>(first, p);
    exp_avg.template close<N>(segment, first, m);
  }
  SHERD_HOST_DEVICE void step(const Segment& segment, float g, float& p, float& m) const {
    const float grad = scale * g;
    const float direction = beta1 * m + fresh1 * grad;
    const float sign = static_cast<float>(direction > 0.0f) - static_cast<float>(direction < 0.0f);
    p = p - lr * (sign + segment.weight_decay * p);
    m = beta2 * m + fresh2 * grad;
  }
};

template <class G, class S>
struct MuonMomentum {
  const G* gradient;
  Moment<S> buffer;
  float* update;
  float momentum, fresh, scale;

  explicit MuonMomentum(const MuonUpdate& args)
      : gradient(args.common.gradient.as<G>()),
        buffer(make_moment<S>(args.momentum_buffer, args.common, 0)),
        update(args.update.as<float>()),
        momentum(args.momentum),
        fresh(static_cast<float>(1.0 - static_cast<double>(args.momentum))),
        scale(args.common.gradient_scale) {}

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    float g[N], m[N], u[N];
    load_wide<N>(gradient + first, g);
    buffer.template open<N>(first, m);
    for (int i = 0; i < N; ++i) {
      const float grad = scale * g[i];
      m[i] = momentum * m[i] + fresh * grad;
      u[i] = fresh * grad + momentum * m[i];
    }
    store<N>(update + first, u);
    buffer.template close<N>(segment, first, m);
  }
};

struct MuonApply {
  float* parameter;
  const float* update;
  float lr;

  explicit MuonApply(const MuonUpdate& args)
      : parameter(args.common.parameter.as<float>()),
        update(args.update.as<float>()),
        lr(args.common.lr) {}

  template <int N>
  SHERD_HOST_DEVICE void apply(const Segment& segment, std::int64_t first) const {
    const float shrink = lr * segment.weight_decay, rate = lr * segment.ratio;
    float p[N], u[N];
    load_wide<N>(parameter + first, p);
    load_wide<N>(update + first, u);
    for (int i = 0; i < N; ++i) p[i] = (p[i] - shrink * p[i]) - rate * u[i];
    store<N>(parameter + first, p);
  }
};

}  // namespace sherd::kernels::device_common
