/// Measures algorithms for the table (kernels/device_common/matmul_table.h). In a build without
/// CUDA it throws (kernels/no_cuda.cpp).
#pragma once

#include <functional>
#include <vector>

#include "core/stream.h"
#include "kernels/device_common/matmul_table.h"

namespace sherd::kernels::cuda {

/// The table section of this GPU and the loaded cuBLASLt.
device_common::MatmulPlace matmul_place(int device);

/// Column-major, as in a MatmulKey.
struct MatmulOperands {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const void* gelu_input = nullptr;
  const void* c = nullptr;  ///< the addend, if it isn't d
};

struct MatmulTiming {
  int most = 16;                 ///< algorithms
  int repeats = 21;              ///< per algorithm
  std::function<void()> before;  ///< before each repeat: simulates the caches after other work
};
/// What cuBLASLt's heuristic offers for `key`, its first answer first, each timed on operands as
/// the key describes them. An algorithm that fails is left out, unless it is the first.
std::vector<device_common::TimedAlgorithm> time_algorithms(Stream& stream,
                                                           const device_common::MatmulKey& key,
                                                           const MatmulOperands& operands,
                                                           const Tensor& workspace,
                                                           const MatmulTiming& how);

}  // namespace sherd::kernels::cuda
