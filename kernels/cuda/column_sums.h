/// out[o] = sum over t of dy[t,o], plus out[o] itself if `add`: the gradient of a bias.
///
/// Bit-identical to the CPU's sum: rows are added within blocks of 64, then the blocks, in f32,
/// rounded once. Workspace: device_common::bias_sums_bytes(shape).
#pragma once

#include "core/stream.h"
#include "kernels/linear.h"

namespace sherd::kernels::cuda {

void sum_columns(Stream& stream, const ConstTensor& dy, const LinearShape& shape, const Tensor& out,
                 bool add, const Tensor& workspace);

}  // namespace sherd::kernels::cuda
