/// Marks a function that is compiled for the host and, in CUDA files, also for the device. Both run
/// the same source, so tests on the host also cover the device code.
#pragma once

#ifdef __CUDACC__
#define SHERD_HOST_DEVICE __host__ __device__
#else
#define SHERD_HOST_DEVICE
#endif
