/// What cuDNN's grouped product of a key computes, with the bits of the emulated matmuls: rows between two experts' offsets,
/// which are read from memory when it is executed, by the first one's matrix, and the last expert's up to the last row.
#pragma once

#include "kernels/cuda/grouped_products.h"
#include "tests/fake_cuda/machine.h"

namespace fake_cuda {

/// How many there were since the program began.
int grouped_products();

}  // namespace fake_cuda

namespace sherd::kernels::cuda {

fake_cuda::Operation grouped_of(const GroupedKey& key, const GroupedOperands& operands,
                                const std::int32_t* offsets, void* scratch);

}  // namespace sherd::kernels::cuda
