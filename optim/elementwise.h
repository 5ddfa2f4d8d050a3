/// Optimizers that need only the slice: AdamW, Adam, SGD with momentum, Lion.
#pragma once

#include "optim/slices.h"

namespace sherd::optim {

OptimizerDescriptor elementwise_descriptor(OptimizerType type);

}  // namespace sherd::optim
