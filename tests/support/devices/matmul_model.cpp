#include "tests/support/devices/matmul_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dispatch_float.h"

namespace sherd::test {
namespace {

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
float multiply_add(float a, float b, float sum) {
  return flushed(std::fma(flushed(a), flushed(b), flushed(sum)));
}
float plus(float a, float b) {
  return flushed(flushed(a) + flushed(b));
}

using Floats = std::vector<float>;

Floats floats_of(const ConstTensor& tensor) {
  Floats values(static_cast<std::size_t>(tensor.numel));
  kernels::dispatch_float(tensor.dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(tensor.as<T>()[i]);
    }
  });
  return values;
}

// One piece of the depth, [k, end), of one element: a[k], and b[k] for its column.
struct Piece {
  const float *a, *b;
  std::int64_t b_stride, k, end;

  float left(std::int64_t i) const { return i < end ? a[i] : 0.0f; }
  float right(std::int64_t i) const { return i < end ? b[i * b_stride] : 0.0f; }
};

float chain(const Piece& p) {
  float sum = 0.0f;
  for (std::int64_t i = p.k; i < p.end; ++i) sum = std::fma(p.left(i), p.right(i), sum);
  return sum;
}

float chain_of_pairs(const Piece& p) {
  float sum = 0.0f;
  for (std::int64_t i = p.k; i < p.end; i += 2) {
    sum = multiply_add(p.left(i + 1), p.right(i + 1), sum);
    sum = multiply_add(p.left(i), p.right(i), sum);
  }
  return sum;
}

float chain_of_tiles(const Piece& p) {
  float sum = 0.0f;
  for (std::int64_t first = p.k; first < p.end; first += 32) {
    float even = 0.0f, odd = 0.0f;
    for (std::int64_t i = first; i < first + 32; i += 2) {
      even = multiply_add(p.left(i), p.right(i), even);
      odd = multiply_add(p.left(i + 1), p.right(i + 1), odd);
    }
    sum = plus(sum, plus(even, odd));
  }
  return sum;
}

// Even pieces of at most 768, a power of two of them.
std::int64_t piece_of(std::int64_t depth) {
  std::int64_t pieces = 1;
  while (depth > 768 * pieces) pieces *= 2;
  const std::int64_t even = (depth + pieces - 1) / pieces;
  return (even + 7) / 8 * 8;
}

}  // namespace

void multiply(const MatmulModel& m, const Tensor& c) {
  const bool bf16 = m.a.dtype == DType::kBF16;
  const Floats a = floats_of(m.a), b = floats_of(m.b);
  const Floats bias = m.bias ? floats_of(m.bias) : Floats(), before = floats_of(c);
  const auto term = [&](const Piece& p) {
    return !bf16 ? chain(p) : m.amx ? chain_of_tiles(p) : chain_of_pairs(p);
  };
  const auto added = [&](float x, float y) { return bf16 ? plus(x, y) : x + y; };
  const bool f32_output = c.dtype == DType::kF32;
  const std::int64_t piece = piece_of(m.depth);
  kernels::dispatch_float(c.dtype, [&]<class R>(R) {
    for (std::int64_t i = 0; i < m.rows; ++i) {
      for (std::int64_t j = 0; j < m.columns; ++j) {
        const std::int64_t at = i * m.columns + j;
        float sum = 0.0f;
        for (std::int64_t k = 0; k < m.depth; k += piece) {
          const float x = term(
              {a.data() + i * m.depth, b.data() + j, m.columns, k, std::min(k + piece, m.depth)});
          sum = k > 0                 ? added(sum, x)
                : m.bias              ? added(bias[j], x)
                : m.add && f32_output ? added(before[at], x)
                                      : x;
        }
        if (m.add && !f32_output) sum = added(before[at], sum);
        c.as<R>()[at] = static_cast<R>(sum);
      }
    }
  });
}

}  // namespace sherd::test
