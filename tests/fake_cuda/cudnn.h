/// cuDNN as far as kernels/cuda/attention.cpp and grouped_products.cpp call it, on the fake machine: an attention or a
/// grouped product is work of the stream that its handle was given. What NVIDIA's cuDNN says to our graphs, tests/cuda_plans asks it.
///
/// Refused as cuDNN refuses it: a stream of another device than the handle's.
#pragma once

namespace fake_cuda {

/// So far: handles that were made, and graphs that were planned.
int cudnn_handles();
int cudnn_graphs();

}  // namespace fake_cuda
