/// CUDA form of kernels/columns.h, as kernels/cuda/forms.h has the others.
#pragma once

#include "kernels/columns.h"

namespace sherd::kernels::cuda {

void add_to_columns(Stream& stream, const Columns& columns, const ConstTensor& z, float scale,
                    const Tensor& y);
void take_columns(Stream& stream, const Columns& columns, const ConstTensor& y, float scale,
                  const Tensor& z);

}  // namespace sherd::kernels::cuda
