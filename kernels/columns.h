/// Some columns of a matrix: columns [first, first + count) of x [T, W].
///
/// Types    f32, bf16 or f16; the columns that are stored are f32, rounded to x's type.
/// Device   CPU; a cut model is refused on a GPU.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

struct Columns {
  std::int64_t rows = 0, width = 0;   ///< T, W
  std::int64_t first = 0, count = 0;  ///< count may be 0
};

/// x[t, first + i] = values[t, i], 0 <= i < count.
void store_columns(Stream& stream, const Columns& columns, ConstTensor values, Tensor x);

/// x[t, first + i] = 0.
void clear_columns(Stream& stream, const Columns& columns, Tensor x);

}  // namespace sherd::kernels
