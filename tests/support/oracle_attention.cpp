#include "tests/support/oracle_attention.h"

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

double scale_of(const AttentionShape& shape) {
  return 1.0 / std::sqrt(static_cast<double>(shape.head_width));
}

// The probabilities of one query over keys 0 .. q, and the log of their denominator.
Values probabilities(const AttentionShape& shape, const Values& qkv, std::int64_t b, std::int64_t h,
                     std::int64_t q, double* lse) {
  const Layout at(shape);
  Values p(static_cast<std::size_t>(q + 1));
  for (std::int64_t k = 0; k <= q; ++k) {
    p[static_cast<std::size_t>(k)] =
        scale_of(shape) * inner(&qkv[at.query(b, q, h)], &qkv[at.key(b, k, h)], shape.head_width);
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0.0;
  for (const double s : p) sum += std::exp(s - largest);
  *lse = largest + std::log(sum);
  for (double& s : p) s = std::exp(s - *lse);
  return p;
}

}  // namespace

Attention attention_forward(const AttentionShape& shape, const Values& qkv, const Values& mask) {
  const Layout at(shape);
  Attention result{
      Values(static_cast<std::size_t>(shape.tokens() * shape.query_heads * shape.head_width), 0.0),
      Values(static_cast<std::size_t>(shape.tokens() * shape.query_heads))};
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    for (std::int64_t h = 0; h < shape.query_heads; ++h) {
      for (std::int64_t q = 0; q < shape.positions; ++q) {
        const auto row =
            static_cast<std::size_t>((b * shape.query_heads + h) * shape.positions + q);
        const Values p = probabilities(shape, qkv, b, h, q, &result.lse[row]);
        for (std::int64_t k = 0; k <= q; ++k) {
          add_scaled(p[static_cast<std::size_t>(k)] * mask[at.score(b, h, q, k)],
                     &qkv[at.value(b, k, h)], &result.out[at.out(b, q, h)], shape.head_width);
        }
      }
    }
  }
  return result;
}

Values attention_backward(const AttentionShape& shape, const Values& qkv, const Values& mask,
                          const Values& out, const Values& dout) {
  const Layout at(shape);
  const std::int64_t K = shape.head_width;
  Values dqkv(qkv.size(), 0.0);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    for (std::int64_t h = 0; h < shape.query_heads; ++h) {
      for (std::int64_t q = 0; q < shape.positions; ++q) {
        double lse = 0.0;
        const Values p = probabilities(shape, qkv, b, h, q, &lse);
        const double* d = &dout[at.out(b, q, h)];
        const double row_sum = inner(d, &out[at.out(b, q, h)], K);
        for (std::int64_t k = 0; k <= q; ++k) {
          const double probability = p[static_cast<std::size_t>(k)];
          const double kept = mask[at.score(b, h, q, k)];
          const double dp = kept * inner(d, &qkv[at.value(b, k, h)], K);
          const double ds = probability * (dp - row_sum) * scale_of(shape);
          add_scaled(ds, &qkv[at.key(b, k, h)], &dqkv[at.query(b, q, h)], K);
          add_scaled(ds, &qkv[at.query(b, q, h)], &dqkv[at.key(b, k, h)], K);
          add_scaled(probability * kept, d, &dqkv[at.value(b, k, h)], K);
        }
      }
    }
  }
  return dqkv;
}

}  // namespace sherd::oracle
