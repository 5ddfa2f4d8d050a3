/// What one rank holds of one unit between steps: parameters, FP32 slices, gradients.
///
/// The optimizer updates the FP32 slice; everything else is a copy of it. With FP32 compute the
/// slice is a view into the resident full buffer (stages 0-2) or a buffer of its own (stage 3).
/// With 16-bit compute it is always a buffer of its own, the master, and at stages 0-2 the full
/// buffer holds a rounded copy. Bytes per parameter on N ranks (rounded copy + FP32 slice +
/// gradients), without moments:
///
///                     stage 0      stage 1        stage 2          stage 3
///   f32               4 + 4        4 + 4          4 + 4/N          4/N + 4/N
///   16-bit, f32 grad  2 + 4 + 4    2 + 4/N + 4    2 + 4/N + 4/N    4/N + 4/N
///
/// Where R replicas divide the optimizer's state (placement.h), a slice is 1/R of a part. At stages 1 and 2 the FP32
/// slice of 16-bit compute takes 4/NR. At stage 3 the part rests in the compute type, as the full buffer does at
/// stage 2, and gradients take 4/N: 4/N + 4/N in f32, 2/N + 4/NR + 4/N in 16 bits.
///
/// A unit may have frozen parameters as well as trained ones (all of the above). They lie in a
/// separate flat buffer, in the compute type: whole at stages 0-2, sliced at stage 3. There are no
/// gradients, FP32 slices and moments of them, so reductions, optimizers, norms and checkpoints, which
/// go by `spec` and `layout`, never see them. Bytes per frozen parameter:
///
///                     stages 0-2   stage 3
///   f32               4            4/N
///   16-bit            2            2/N
///
/// Some of the frozen ones may be quantised (kernels/nf4.h), again in a flat buffer of their own, at 33/64
/// bytes a parameter: whole at stages 0-2, sliced at stage 3. They are used out of gather slots at every
/// stage. The ranges of their scales, 4 bytes for 16,384 parameters, are whole at every stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"
#include "sharding/zero/flat_layout.h"
#include "sharding/zero/placement.h"

namespace sherd::sharding {

struct Precision {
  DType parameters = DType::kF32;  ///< compute and gather
  DType reduce = DType::kF32;      ///< a micro-step's gradient, and its reduction
  DType accumulate = DType::kF32;  ///< gradients added over micro-steps
};

/// A unit on a mesh, before any rank holds it: all that memory and traffic follow from.
struct UnitPlan {
  UnitPlan(UnitSpec spec, const Placement& placement, const Precision& precision, const Mesh& mesh,
           std::vector<ParameterSpec> frozen = {}, std::vector<ParameterSpec> quantised = {});

  /// A tied matrix is used at both ends of a pipeline. Where these are on different ranks, each holds the
  /// unit, both add their gradients at the end of the step, and the first counts and saves it.
  struct Tie {
    int first_rank = 0, last_rank = 0;  ///< of the world
    bool is_first = true;               ///< this rank
  };
  std::optional<Tie> tie{};
  /// This rank has both ends of a tied matrix, and accumulates their gradients separately, the head's in a second
  /// accumulator. They are added at the end of the step: the sum that two ranks of a pipeline form.
  bool ends_apart = false;
  /// Number of neighbours of the ZeRO group with parts of the same micro-batch's gradient, summed as a balanced
  /// tree: context ranks with canonical sums (docs/precision.md). 1: sums are in rank order.
  int tree_of_ranks = 1;
  /// By parameter: whether the backward may add its gradient to the accumulated one, if that is full
  /// (gradient_reduction.h). Empty: none.
  std::vector<bool> may_add{};

  UnitSpec spec;  ///< with the trained parameters
  Placement placement;
  Precision precision;
  FlatLayout layout;  ///< one slice for each rank of a group along slice_axes(placement)
  int num_parts;      ///< one for each rank of the ZeRO group
  std::vector<ParameterSpec> frozen;
  FlatLayout frozen_layout;
  std::vector<ParameterSpec> quantised;  ///< frozen too
  FlatLayout quantised_layout;
  int num_replicas;  ///< ranks along `replica_axes`: a slice's gradient is summed over them

  /// Who gathers and reduces it, and who has the same part.
  Callers group() const { return {.count = num_parts, .axes = placement.group}; }
  Callers replicas() const { return {.count = num_replicas, .axes = replica_axes(placement)}; }

  bool trains() const { return !spec.parameters.empty(); }
  bool has_frozen() const { return !frozen.empty(); }
  bool has_quantised() const { return !quantised.empty(); }
  int slices_per_part() const { return layout.num_slices() / num_parts; }
  std::int64_t part_numel() const { return layout.numel() / num_parts; }
  /// Whether a part is made of several slices: replicas divide the optimizer's state.
  bool divides_parts() const { return slices_per_part() > 1; }
  /// Whether it is used out of a slot: gathered, or decoded there.
  bool needs_slot() const { return placement.parameters_sharded() || has_quantised(); }
  /// One view per parameter, all in the order of the model's table. Those of a buffer that isn't given
  /// are empty.
  std::vector<Tensor> views(const Tensor& trained_full, const Tensor& frozen_full,
                            const Tensor& quantised_full = {}) const;

  /// Bytes of a slice of quantised parameters: its codes, then the codes of its scales.
  std::int64_t quantised_slice_bytes() const;
  /// Index of the first range of quantised parameter `parameter` among those of the unit; for the number of
  /// parameters, the number of ranges.
  std::int64_t first_range(int parameter) const;

  /// Elements of the slices that one rank updates: all of them at stage 0, its own otherwise.
  std::int64_t updated_numel() const {
    return placement.optimizer_sharded() ? layout.slice_numel() : layout.numel();
  }
};

/// Of the unit's flat buffer, what counts in sums over tensor ranks, ascending: everything where parameters
/// aren't cut, padding included.
std::vector<SliceRange> counted_ranges(const UnitPlan& unit);

/// What a rank holds at rest of a unit.
struct UnitBuffers {
  std::optional<BufferSpec> resident;         ///< stages 0-2: full; a divided part at stage 3
  std::optional<BufferSpec> fp32_parameters;  ///< 16-bit compute, and where nothing is resident
  std::optional<BufferSpec> gradients;
  std::optional<BufferSpec> frozen;
  std::optional<BufferSpec> quantised, ranges;

  std::vector<BufferSpec> list() const;
};
UnitBuffers unit_buffers(const UnitPlan& unit);

class UnitState {
 public:
  UnitState(UnitPlan plan, const Rank& rank);

  const UnitPlan& plan() const { return plan_; }
  const UnitSpec& spec() const { return plan_.spec; }
  const std::string& name() const { return plan_.spec.name; }
  const FlatLayout& layout() const { return plan_.layout; }
  const Placement& placement() const { return plan_.placement; }
  const Precision& precision() const { return plan_.precision; }

  bool trains() const { return plan_.trains(); }

  /// Parameters in compute type: full at stages 0-2; at stage 3 this rank's part where it is divided, else empty.
  const Tensor& resident_parameters() const { return resident_.tensor(); }
  /// This rank's part of what is resident.
  Tensor resident_part() const;
  /// This rank's part and slice, by their numbers.
  int own_part() const { return own_slice_ / plan_.slices_per_part(); }
  int own_slice() const { return own_slice_; }
  /// Part `own_part()` of a full buffer.
  Tensor part_of(const Tensor& full) const {
    return full.part(own_part() * plan_.part_numel(), plan_.part_numel());
  }
  /// Whether sums over all ranks take it from this rank; others may hold copies.
  bool contributes_slice() const { return first_of_copies_ && !is_second_end(); }
  /// The same for sums over the ranks of one place in the pipeline.
  bool first_of_copies() const { return first_of_copies_; }
  /// What of it counts in sums over all ranks, ascending, where `contributes_slice`: everything but copies
  /// of what another tensor rank has.
  const std::vector<SliceRange>& counted_ranges() const { return counted_ranges_; }
  /// What of it this rank writes to a checkpoint.
  const SliceRange& saved_range() const { return saved_range_; }
  /// The slices that this rank updates: all of them at stage 0, its own otherwise.
  const std::vector<int>& updated_slices() const { return updated_slices_; }
  /// The FP32 parameters of slice `slice_index` (one of `updated_slices`).
  Tensor fp32_slice(int slice_index) const;
  /// Accumulated gradients: full, or this rank's part if `placement().gradients_sharded()`.
  const Tensor& gradients() const { return gradients_.tensor(); }
  /// The accumulated gradient of slice `slice_index`.
  Tensor gradient(int slice_index) const;

  /// Whether it counts its frozen parameters; other replicas may hold copies.
  bool contributes_frozen() const { return first_replica_ && !is_second_end(); }
  /// The frozen parameters in compute type: full, or this rank's slice at stage 3. Their slices are parts: no
  /// optimizer has a state of them.
  const Tensor& frozen() const { return frozen_.tensor(); }
  /// The slices of them that this rank holds, and one of these.
  std::vector<int> frozen_slices() const;
  Tensor frozen_slice(int slice_index) const;

  /// Quantised parameters, u8: all slices in order, or this rank's at stage 3. The same slices
  /// as of frozen ones.
  const Tensor& quantised() const { return quantised_.tensor(); }
  Tensor quantised_slice(int slice_index) const;
  /// Of one quantised parameter, f32; the mean first.
  Tensor ranges(int parameter) const;

  /// Slice `slice_index` of what is resident, if that is another buffer: the FP32 parameters' rounded ones. Else empty.
  Tensor rounded_slice(int slice_index) const;

 private:
  bool is_second_end() const { return plan_.tie && !plan_.tie->is_first; }

  /// A slice out of a buffer that is full, this rank's part, or the slice itself.
  Tensor slice_in(const Tensor& held, int slice_index) const;

  UnitPlan plan_;
  int own_slice_;
  bool first_of_copies_, first_replica_;
  SliceRange saved_range_;
  std::vector<SliceRange> counted_ranges_;
  std::vector<int> updated_slices_;
  Buffer resident_;
  Buffer fp32_parameters_;
  Buffer gradients_;
  Buffer frozen_;
  Buffer quantised_, ranges_;
};

/// Place of a piece of a quantised parameter in its slice's bytes.
struct QuantisedPiece {
  Tensor codes, scale_codes;
};
QuantisedPiece quantised_piece(const Tensor& slice_bytes, const Piece& piece);

std::vector<UnitPlan> plans_of(const std::vector<UnitState>& units);

/// A model on a mesh: what every rank's memory, traffic and state follow from.
struct ShardingPlan {
  Mesh mesh;
  std::vector<UnitPlan> units;
};

}  // namespace sherd::sharding
