/// Some columns of a matrix: columns [first, first + count) of y [T, W]. The others are unchanged.
///
///   add_to_columns   y[t, first + c] += scale * z[t, c]
///   take_columns     z[t, c] = scale * y[t, first + c]
///   store_columns    y[t, first + c] = values[t, c]
///   clear_columns    y[t, first + c] = 0
///   move_columns     y[t, first + c] = x[t, first' + c]      the same bits, of any type
///
/// Shapes   z, values [T, C], first + C at most W; T and C may be 0.
/// Types    y and z of one type (f32, bf16, f16), computed in f32, rounded once. Stored values are
///          f32, rounded to y's type.
/// Bits     an element depends only on its own inputs: the same on every device and at every
///          position.
/// Errors   mismatched sizes are a bug in Sherd (SHERD_CHECK). y and z may not overlap.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/philox.h"

namespace sherd::kernels {

struct Columns {
  std::int64_t rows = 0, width = 0;   ///< T, W
  std::int64_t first = 0, count = 0;  ///< C

  /// Where element i of [T, C] is in [T, W].
  SHERD_HOST_DEVICE std::int64_t in_matrix(std::int64_t i) const {
    return i / count * width + first + i % count;
  }
};

void add_to_columns(Stream& stream, const Columns& columns, ConstTensor z, float scale, Tensor y);
void take_columns(Stream& stream, const Columns& columns, ConstTensor y, float scale, Tensor z);
void store_columns(Stream& stream, const Columns& columns, ConstTensor values, Tensor y);
void clear_columns(Stream& stream, const Columns& columns, Tensor y);
/// `from` and `to` have the same number of columns.
void move_columns(Stream& stream, const Columns& from, ConstTensor x, const Columns& to, Tensor y);

}  // namespace sherd::kernels
