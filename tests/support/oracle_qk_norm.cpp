#include "tests/support/oracle_qk_norm.h"

#include <algorithm>

#include "tests/support/oracle_norm.h"

namespace sherd::oracle {
namespace {

using kernels::QkNormShape;
using kernels::QkRows;

/// Queries or keys: where they begin in a token, how many heads, and the rows that these make.
struct Part {
  std::int64_t begin, heads;
  bool is_query;

  kernels::NormShape norm(const QkNormShape& shape) const {
    const bool per_head = shape.rows == QkRows::kHeads;
    return {shape.kind, shape.tokens * (per_head ? heads : 1),
            shape.head_width * (per_head ? 1 : heads), shape.eps, shape.weight_offset};
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

std::vector<Part> parts(const QkNormShape& shape) {
  return {{0, shape.query_heads, true},
          {shape.query_heads * shape.head_width, shape.kv_heads, false}};
}

}  // namespace

Values qk_norm_forward(const QkNormShape& shape, Values qkv, const Values& query_weight,
                       const Values& key_weight) {
  for (const Part& part : parts(shape)) {
    const Norm norm = norm_forward(part.norm(shape), part.rows(shape, qkv),
                                   part.is_query ? query_weight : key_weight, {});
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
                      part.is_query ? query_weight : key_weight, part.rows(shape, dy), {});
    part.put_back(shape, norm.d_residual, gradients.dqkv);
    (part.is_query ? gradients.query_weight : gradients.key_weight) = norm.dweight;
  }
  return gradients;
}

}  // namespace sherd::oracle
