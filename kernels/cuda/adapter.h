/// CUDA form of kernels/adapter.h, as kernels/cuda/forms.h has the others.
#pragma once

#include "kernels/adapter.h"

namespace sherd::kernels::cuda {

void add_to_columns(Stream& stream, const Columns& columns, const ConstTensor& z, float scale,
                    const Tensor& y);
void take_columns(Stream& stream, const Columns& columns, const ConstTensor& y, float scale,
                  const Tensor& z);
void fill_uniform(Stream& stream, const Tensor& out, const RandomAddress& address,
                  std::int64_t first_element, float bound);

}  // namespace sherd::kernels::cuda
