/// What one rank holds at rest of one unit: its parameters, its FP32 slices, its gradients.
///
/// The FP32 slice is the parameter. With FP32 compute it is a view into the resident full buffer
/// (stages 0-2) or the slice itself (stage 3); with 16-bit compute it is a buffer of its own, the
/// master, and the full buffer holds a rounded copy. Bytes per parameter on N ranks, without
/// moments:
///
///                     stage 0      stage 1        stage 2          stage 3
///   f32               4 + 4        4 + 4          4 + 4/N          4/N + 4/N
///   16-bit, f32 grad  2 + 4 + 4    2 + 4/N + 4    2 + 4/N + 4/N    4/N + 4/N
#pragma once

#include <string>
#include <vector>

#include "sharding/flat_layout.h"
#include "sharding/placement.h"
#include "sharding/rank.h"

namespace sherd::sharding {

struct Precision {
  DType parameters = DType::kF32;  ///< compute and gather
  DType reduce = DType::kF32;      ///< a micro-step's gradient, and its reduction
  DType accumulate = DType::kF32;  ///< gradients added over micro-steps
};

class UnitState {
 public:
  UnitState(UnitSpec spec, const Placement& placement, const Precision& precision,
            const Rank& rank);

  const UnitSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  const FlatLayout& layout() const { return layout_; }
  const Placement& placement() const { return placement_; }
  const Precision& precision() const { return precision_; }

  /// Full parameters in compute type; empty at stage 3.
  const Tensor& resident_parameters() const { return resident_.tensor(); }
  /// The slices that this rank updates: all of them at stage 0, its own otherwise.
  const std::vector<int>& updated_slices() const { return updated_slices_; }
  /// The FP32 parameters of slice `owner` (one of `updated_slices`).
  Tensor master(int owner) const;
  /// Accumulated gradients: full, or this rank's slice if `placement().gradients_sharded`.
  const Tensor& gradients() const { return gradients_.tensor(); }
  /// The accumulated gradient of slice `owner`.
  Tensor gradient(int owner) const;

  /// After an update: rounds slice `owner` into the resident full buffer, if that is another one.
  void refresh_resident(Stream& stream, int owner) const;

 private:
  UnitSpec spec_;
  Placement placement_;
  Precision precision_;
  FlatLayout layout_;
  int rank_;
  std::vector<int> updated_slices_;
  Buffer resident_;  // stages 0-2
  Buffer master_;    // stage 3, and 16-bit compute
  Buffer gradients_;
};

}  // namespace sherd::sharding
