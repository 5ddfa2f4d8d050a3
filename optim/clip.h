/// The global gradient norm, and the factor that clips it to a limit (Pascanu et al. 2013).
///
///   norm  = sqrt(sum over all ranks' slices of g^2)           (an exact sum, core/exact_sum.h)
///   scale = norm > max_norm ? max_norm / norm : 1          (max_norm 0: always 1)
///
/// Each rank adds the squares of its own slices. If several ranks hold copies of a slice, or of a
/// part of a parameter, only one counts. The sum is exact, so it doesn't depend on how the world is
/// divided into slices. A GPU first adds its own slices in f64. Padding is zero and adds nothing.
#pragma once

#include <vector>

#include "core/exact_sum.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/zero/unit.h"

namespace sherd::optim {

/// An exact sum for each counted range of a unit, and workspace for the largest slice.
struct NormBuffers {
  BufferSpec sums, workspace;
};
NormBuffers gradient_norm_buffers(const std::vector<sharding::UnitPlan>& units);

class GradientNorm {
 public:
  GradientNorm(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units);

  /// Sum of squares of this rank's slices of all units. Blocks until the compute stream has reached
  /// this point.
  ExactSum local_sum_of_squares();

 private:
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  sharding::MirroredBuffer sums_;  // ExactSum::kNumbers f64 per range
  Buffer workspace_;
};

float clip_scale(float norm, float max_norm);

}  // namespace sherd::optim
