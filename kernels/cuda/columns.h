/// CUDA form of kernels/columns.h, like the forms in kernels/cuda/forms.h.
#pragma once

#include "kernels/columns.h"

namespace sherd::kernels::cuda {

void add_to_columns(Stream& stream, const Columns& columns, const ConstTensor& z, float scale,
                    const Tensor& y);
void take_columns(Stream& stream, const Columns& columns, const ConstTensor& y, float scale,
                  const Tensor& z);
void store_columns(Stream& stream, const Columns& columns, const ConstTensor& values,
                   const Tensor& y);
void clear_columns(Stream& stream, const Columns& columns, const Tensor& y);
void move_columns(Stream& stream, const Columns& from, const ConstTensor& x, const Columns& to,
                  const Tensor& y);

}  // namespace sherd::kernels::cuda
