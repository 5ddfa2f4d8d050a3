/// What cuDNN's graph of a key computes, term by term in f64 over the views that cuDNN is given. Dropout is drawn from the
/// seed and offset that are in memory when it is executed, as no kernel of ours does.
#pragma once

#include "kernels/cuda/attention_key.h"
#include "tests/fake_cuda/machine.h"

namespace sherd::kernels::cuda {

fake_cuda::Operation attention_of(const AttentionGraphKey& key, const AttentionPointers& pointers,
                                  void* scratch);

}  // namespace sherd::kernels::cuda
