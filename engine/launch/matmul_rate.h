/// How fast this machine multiplies matrices: the yardstick of a run's utilisation and of benchmarks.
#pragma once

#include "core/cuda_device.h"

namespace sherd::engine {

/// Floating-point operations per second that `num_threads` threads reach together with the tiles that multiply `dtype`
/// (kernels/linear.h), out of their first caches: nothing that is made of them is faster. The best of some rounds that all
/// threads begin at the same time; takes some milliseconds. A machine that is busy just then gives less.
double measure_matmul_peak(DType dtype, int num_threads);

/// Of matmuls of `dtype` on the GPU `options.device`: the best of a few rounds of 8192^3 matmuls.
double measure_matmul_rate_of_gpu(DType dtype, const CudaStreamOptions& options);

}  // namespace sherd::engine
