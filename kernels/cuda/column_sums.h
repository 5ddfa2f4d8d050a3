/// out[o] = sum over t of x[t,o], plus out[o] itself if `add`: the gradient of a bias.
///
/// The CPU's sum and its bits: rows are added within blocks of 64, then the blocks, in f32, rounded
/// once.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels::cuda {

void sum_columns(Stream& stream, const ConstTensor& x, std::int64_t rows, std::int64_t columns,
                 const Tensor& out, bool add);

}  // namespace sherd::kernels::cuda
