/// LAMB and LARS: each tensor's learning rate depends on its norm and its update's norm.
///
///   LAMB  ratio = |p| / |r|                                          (arXiv:1904.00962v3, Alg. 2)
///   LARS  ratio = trust_coefficient |p| / (|g| + weight_decay |p|)   (arXiv:1708.03888, eq. 6)
///
/// A ratio is 1 if one of its norms is zero, and at most 1e30. With an update near the smallest
/// float it would otherwise be infinite, and infinity times 0 is NaN. Norms of whole tensors:
/// tensor_norms.h.
#pragma once

#include "optim/tensor_norms.h"

namespace sherd::optim {

/// The trust ratio of every parameter in the last step, by index in the model's table.
class LayerwiseAdaptive : public Optimizer {
 public:
  const std::vector<float>& ratios() const { return ratios_; }

 protected:
  std::vector<float> ratios_;
};

OptimizerDescriptor layerwise_adaptive_descriptor(OptimizerType type);

}  // namespace sherd::optim
