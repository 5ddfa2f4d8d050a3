/// What low-rank adapters need beside matmuls: some columns of a wider matrix, and uniform numbers.
///
///   add_to_columns   y[t, first + c] += scale * z[t, c]
///   take_columns     z[t, c] = scale * y[t, first + c]
///   fill_uniform     out[i] = bound * (2 u - 1),  u = (word(first_element + i) + 1/2) / 2^32
///
/// Shapes   y [T, W], z [T, C], first + C at most W. An empty matrix is allowed.
/// Types    y and z of one type (f32, bf16, f16); computed in f32, rounded once. out is f32; a uniform
///          number is formed in f64 and rounded once.
/// Bits     an element follows its own inputs alone: the same on every device, wherever it lies.
/// Errors   sizes that disagree are our bug (CHECK). y and z may not overlap.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/philox.h"

namespace sherd::kernels {

/// Columns [first, first + count) of a matrix of `width` columns.
struct Columns {
  std::int64_t rows = 0;  ///< T
  std::int64_t width = 0;
  std::int64_t first = 0, count = 0;
};

void add_to_columns(Stream& stream, const Columns& columns, ConstTensor z, float scale, Tensor y);
void take_columns(Stream& stream, const Columns& columns, ConstTensor y, float scale, Tensor z);

/// u of one element's word, on host and device.
SHERD_HOST_DEVICE inline float uniform_number(std::uint32_t word, float bound) {
  const double u = (static_cast<double>(word) + 0.5) * (1.0 / 4294967296.0);
  return static_cast<float>(static_cast<double>(bound) * (2.0 * u - 1.0));
}
/// Words are kernels/philox.h's, so an element's number depends on its address alone.
void fill_uniform(Stream& stream, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound);

}  // namespace sherd::kernels
