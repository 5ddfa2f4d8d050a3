#include "optim/adafactor.h"
#include "optim/elementwise.h"
#include "optim/layerwise_adaptive.h"
#include "optim/matrices/dion.h"
#include "optim/matrices/muon.h"
#include "optim/optimizer.h"

namespace sherd::optim {

const OptimizerDescriptor& descriptor_of(OptimizerType type) {
  static const OptimizerDescriptor kTable[] = {
      elementwise_descriptor(OptimizerType::kAdamW),
      elementwise_descriptor(OptimizerType::kAdam),
      elementwise_descriptor(OptimizerType::kSgd),
      elementwise_descriptor(OptimizerType::kLion),
      layerwise_adaptive_descriptor(OptimizerType::kLamb),
      layerwise_adaptive_descriptor(OptimizerType::kLars),
      muon_descriptor(),
      adafactor_descriptor(),
      dion_descriptor(),
  };
  for (const OptimizerDescriptor& row : kTable) {
    if (row.type == type) return row;
  }
  SHERD_CHECK(false, "an optimizer without a descriptor");
  __builtin_unreachable();
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const sharding::Rank& rank,
                                          const std::vector<sharding::UnitState>& units) {
  return descriptor_of(options.type).make(options, rank, units);
}

}  // namespace sherd::optim
