/// Attention in our own kernels, for what cuDNN refuses (kernels/device_common/attention.h).
/// Computed in f32; every sum has a fixed order, and the dropout mask is the CPU's.
#pragma once

#include "kernels/attention.h"

namespace sherd::kernels::cuda {

void attention_tiles_forward(Stream& stream, const AttentionForward& args);
void attention_tiles_backward(Stream& stream, const AttentionBackward& args);

/// Enqueues pair[0] = first, pair[1] = second in device memory.
void set_pair(Stream& stream, void* pair, std::int64_t first, std::int64_t second);

}  // namespace sherd::kernels::cuda
