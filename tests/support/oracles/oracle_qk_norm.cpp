#include "tests/support/oracles/oracle_qk_norm.h"

#include <algorithm>

#include "tests/support/oracles/oracle_norm.h"

namespace sherd::oracle {
namespace {

using kernels::QkNormShape;
using kernels::QkRows;

/// Queries or keys, or one head of them: where they begin in a token, how many heads, the rows that these make, and
/// where their weights begin.
struct Part {
  std::int64_t begin, heads;
  bool is_query;
  std::int64_t first_weight = 0;

  kernels::NormShape norm(const QkNormShape& shape) const {
    const bool is_heads = shape.rows == QkRows::kHeads;
    return {shape.kind, shape.tokens * (is_heads ? heads : 1),
            shape.head_width * (is_heads ? 1 : heads), shape.eps, shape.weight_offset};
  }
  Values rows(const QkNormShape& shape, const Values& packed) const {
    Values rows;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      const auto first = packed.begin() + t * shape.packed_width() + begin;
      rows.insert(rows.end(), first, first + heads * shape.head_width);
    }
    return rows;
  }
  void put_back(const QkNormShape& shape, const Values& rows, Values& packed) const {
    const std::int64_t width = heads * shape.head_width;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      std::copy_n(rows.begin() + t * width, width,
                  packed.begin() + t * shape.packed_width() + begin);
    }
  }
};

// Where heads have weights of their own, each is a projection of one head.
std::vector<Part> parts(const QkNormShape& shape) {
  const std::int64_t K = shape.head_width, keys = shape.query_heads * K;
  if (shape.rows != QkRows::kPerHead) {
    return {{0, shape.query_heads, true}, {keys, shape.kv_heads, false}};
  }
  std::vector<Part> parts;
  for (std::int64_t h = 0; h < shape.query_heads; ++h) parts.push_back({h * K, 1, true, h * K});
  for (std::int64_t g = 0; g < shape.kv_heads; ++g) {
    parts.push_back({keys + g * K, 1, false, g * K});
  }
  return parts;
}

Values weights_of(const QkNormShape& shape, const Part& part, const Values& weights) {
  const auto first = weights.begin() + part.first_weight;
  const bool is_heads = shape.rows == QkRows::kHeads;
  return {first, first + (is_heads ? 1 : part.heads) * shape.head_width};
}

}  // namespace

Values qk_norm_forward(const QkNormShape& shape, Values qkv, const Values& query_weight,
                       const Values& key_weight) {
  for (const Part& part : parts(shape)) {
    const Norm norm =
        norm_forward(part.norm(shape), part.rows(shape, qkv),
                     weights_of(shape, part, part.is_query ? query_weight : key_weight), {});
    part.put_back(shape, norm.y, qkv);
  }
  return qkv;
}

QkNormGradients qk_norm_backward(const QkNormShape& shape, const Values& qkv,
                                 const Values& query_weight, const Values& key_weight,
                                 const Values& dy) {
  QkNormGradients gradients{dy, {}, {}};
  for (const Part& part : parts(shape)) {
    const NormGradients norm =
        norm_backward(part.norm(shape), part.rows(shape, qkv),
                      weights_of(shape, part, part.is_query ? query_weight : key_weight),
                      part.rows(shape, dy), {});
    part.put_back(shape, norm.d_residual, gradients.dqkv);
    Values& weights = part.is_query ? gradients.query_weight : gradients.key_weight;
    weights.insert(weights.end(), norm.dweight.begin(), norm.dweight.end());
  }
  return gradients;
}

}  // namespace sherd::oracle
