/// Marks a function that is compiled for the host and, in CUDA files, for the device too: the same
/// text computes on both, and tests on the host say what it computes.
#pragma once

#ifdef __CUDACC__
#define SHERD_HOST_DEVICE __host__ __device__
#else
#define SHERD_HOST_DEVICE
#endif
