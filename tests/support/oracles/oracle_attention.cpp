#include "tests/support/oracles/oracle_attention.h"

#include <algorithm>
#include <cmath>

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::oracle {
namespace {

using kernels::AttentionShape;

// Where the vectors of a token begin.
struct Layout {
  explicit Layout(const AttentionShape& shape) : shape(shape) {}
  std::int64_t token(std::int64_t b, std::int64_t s) const { return b * shape.positions + s; }
  std::size_t query(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return at(token(b, s), h);
  }
  std::size_t key(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return at(token(b, s), shape.query_heads + h / group());
  }
  std::size_t value(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return at(token(b, s), shape.query_heads + shape.kv_heads + h / group());
  }
  std::size_t out(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return static_cast<std::size_t>((token(b, s) * shape.query_heads + h) * shape.head_width);
  }
  std::size_t score(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const {
    return static_cast<std::size_t>(
        ((b * shape.query_heads + h) * shape.positions + q) * shape.positions + k);
  }

 private:
  std::int64_t group() const { return shape.query_heads / shape.kv_heads; }
  std::size_t at(std::int64_t t, std::int64_t head) const {
    return static_cast<std::size_t>(t * shape.packed_width() + head * shape.head_width);
  }
  AttentionShape shape;
};

double inner(const double* a, const double* b, std::int64_t K) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < K; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(double factor, const double* a, double* b, std::int64_t K) {
  for (std::int64_t i = 0; i < K; ++i) b[i] += factor * a[i];
}

void add_magnitudes(double factor, const double* a, double* b, std::int64_t K) {
  for (std::int64_t i = 0; i < K; ++i) b[i] += std::abs(factor * a[i]);
}

double scale_of(const AttentionShape& shape) {
  if (shape.scale > 0.0f) return static_cast<double>(shape.scale);
  return 1.0 / std::sqrt(static_cast<double>(shape.head_width));
}

bool sees(const AttentionShape& shape, std::int64_t q, std::int64_t k) {
  return k <= q && (shape.window == 0 || k > q - shape.window);
}

// The probabilities of one query over keys 0 .. q, and the log of their denominator. `slope`: of the
// soft cap at each score, 1 without one.
Values probabilities(const AttentionShape& shape, const Values& qkv, std::int64_t b, std::int64_t h,
                     std::int64_t q, double* lse, Values* slope = nullptr) {
  const Layout at(shape);
  Values p(static_cast<std::size_t>(q + 1));
  if (slope != nullptr) slope->assign(p.size(), 1.0);
  double sum = 0.0, largest = -1e300;
  for (std::int64_t k = 0; k <= q; ++k) {
    double s =
        scale_of(shape) * inner(&qkv[at.query(b, q, h)], &qkv[at.key(b, k, h)], shape.head_width);
    if (shape.softcap > 0.0f) {
      const auto cap = static_cast<double>(shape.softcap);
      const double tanh = std::tanh(s / cap);
      s = cap * tanh;
      if (slope != nullptr) (*slope)[static_cast<std::size_t>(k)] = 1.0 - tanh * tanh;
    }
    p[static_cast<std::size_t>(k)] = s;
    if (sees(shape, q, k)) largest = std::max(largest, s);
  }
  for (std::int64_t k = 0; k <= q; ++k) {
    if (sees(shape, q, k)) sum += std::exp(p[static_cast<std::size_t>(k)] - largest);
  }
  *lse = largest + std::log(sum);
  for (std::int64_t k = 0; k <= q; ++k) {
    double& s = p[static_cast<std::size_t>(k)];
    s = sees(shape, q, k) ? std::exp(s - *lse) : 0.0;
  }
  return p;
}

}  // namespace

Attention attention_forward(const AttentionShape& shape, const Values& qkv, const Values& mask) {
  const Layout at(shape);
  Attention result{
      Values(static_cast<std::size_t>(shape.tokens() * shape.query_heads * shape.head_width), 0.0),
      Values(static_cast<std::size_t>(shape.tokens() * shape.query_heads)),
      {}};
  result.magnitudes.assign(result.out.size(), 0.0);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    for (std::int64_t h = 0; h < shape.query_heads; ++h) {
      for (std::int64_t q = 0; q < shape.positions; ++q) {
        const auto row =
            static_cast<std::size_t>((b * shape.query_heads + h) * shape.positions + q);
        const Values p = probabilities(shape, qkv, b, h, q, &result.lse[row]);
        for (std::int64_t k = 0; k <= q; ++k) {
          const double weight = p[static_cast<std::size_t>(k)] * mask[at.score(b, h, q, k)];
          const double* value = &qkv[at.value(b, k, h)];
          add_scaled(weight, value, &result.out[at.out(b, q, h)], shape.head_width);
          add_magnitudes(weight, value, &result.magnitudes[at.out(b, q, h)], shape.head_width);
        }
      }
    }
  }
  return result;
}

Values attention_backward(const AttentionShape& shape, const Values& qkv, const Values& mask,
                          const Values& out, const Values& dout, Values* magnitudes) {
  const Layout at(shape);
  const std::int64_t K = shape.head_width;
  Values dqkv(qkv.size(), 0.0);
  if (magnitudes != nullptr) magnitudes->assign(qkv.size(), 0.0);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    for (std::int64_t h = 0; h < shape.query_heads; ++h) {
      for (std::int64_t q = 0; q < shape.positions; ++q) {
        double lse = 0.0;
        Values slope;
        const Values p = probabilities(shape, qkv, b, h, q, &lse, &slope);
        const double* d = &dout[at.out(b, q, h)];
        const double row_sum = inner(d, &out[at.out(b, q, h)], K);
        for (std::int64_t k = 0; k <= q; ++k) {
          const double probability = p[static_cast<std::size_t>(k)];
          const double kept = mask[at.score(b, h, q, k)];
          const double dp = kept * inner(d, &qkv[at.value(b, k, h)], K);
          const double ds =
              probability * (dp - row_sum) * slope[static_cast<std::size_t>(k)] * scale_of(shape);
          const std::size_t query = at.query(b, q, h), key = at.key(b, k, h),
                            value = at.value(b, k, h);
          add_scaled(ds, &qkv[key], &dqkv[query], K);
          add_scaled(ds, &qkv[query], &dqkv[key], K);
          add_scaled(probability * kept, d, &dqkv[value], K);
          if (magnitudes == nullptr) continue;
          add_magnitudes(ds, &qkv[key], &(*magnitudes)[query], K);
          add_magnitudes(ds, &qkv[query], &(*magnitudes)[key], K);
          add_magnitudes(probability * kept, d, &(*magnitudes)[value], K);
        }
      }
    }
  }
  return dqkv;
}

}  // namespace sherd::oracle
