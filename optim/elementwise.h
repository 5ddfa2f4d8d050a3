/// Optimizers that need only the slice: AdamW, Adam, SGD with momentum, Lion.
#pragma once

#include "optim/slices.h"

namespace sherd::optim {

/// Elements of a block of what is on disk; 0: nothing is. Only these optimizers have state on disk.
std::int64_t offload_block(const OptimizerOptions& options);

OptimizerDescriptor elementwise_descriptor(OptimizerType type);

}  // namespace sherd::optim
