/// How fast this machine multiplies matrices: the yardstick of a run's utilisation.
#pragma once

#include "core/cuda_device.h"

namespace sherd::engine {

/// Floating-point operations per second of f32 matmuls on `num_threads` threads together, through
/// the same kernel that the model uses: the best of a few 1024^3 matmuls. Takes about 0.1 s.
double measure_matmul_rate(int num_threads);

/// The same for `dtype` on the GPU `options.device`: the best of a few rounds of 8192^3 matmuls.
double measure_matmul_rate_of_gpu(DType dtype, const CudaStreamOptions& options);

}  // namespace sherd::engine
