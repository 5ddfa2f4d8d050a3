/// Optimizers that need nothing but the slice: AdamW, Adam, SGD with momentum, Lion.
#pragma once

#include "optim/slices.h"

namespace sherd::optim {

std::vector<BufferSpec> elementwise_buffers(const OptimizerOptions& options,
                                            const std::vector<sharding::UnitPlan>& units);

std::unique_ptr<Optimizer> make_elementwise(const OptimizerOptions& options,
                                            const sharding::Rank& rank,
                                            const std::vector<sharding::UnitState>& units);

}  // namespace sherd::optim
