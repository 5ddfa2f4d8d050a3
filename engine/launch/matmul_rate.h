/// This machine's matmul rate, the reference for a run's utilisation and for benchmarks.
#pragma once

#include "core/cuda_device.h"

namespace sherd::engine {

/// Floating-point operations per second that `num_threads` threads reach together with the matmul
/// tiles of `dtype` (kernels/linear.h) in L1 cache, an upper bound for matmuls built from them. The
/// best of many rounds that all threads begin at the same time; takes 20 milliseconds. Lower on a busy
/// machine.
double measure_matmul_peak(DType dtype, int num_threads);

/// The rate of matmuls of `dtype` on the GPU `options.device`: the best of a few rounds of 8192^3
/// matmuls.
double measure_matmul_rate_of_gpu(DType dtype, const CudaStreamOptions& options);

}  // namespace sherd::engine
