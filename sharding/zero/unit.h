/// What one rank holds of one unit between steps: parameters, FP32 slices, gradients.
///
/// The optimizer updates the FP32 slice; everything else is a copy of it. With FP32 compute the
/// slice is a view into the resident full buffer (stages 0-2) or a buffer of its own (stage 3).
/// With 16-bit compute, and with gathers in blocks, it is always a buffer of its own, the master, and at stages 0-2 the full
/// buffer holds a rounded copy. Bytes per parameter on N ranks (rounded copy + FP32 slice +
/// gradients), without moments:
///
///                     stage 0      stage 1        stage 2          stage 3
///   f32               4 + 4        4 + 4          4 + 4/N          4/N + 4/N
///   16-bit, f32 grad  2 + 4 + 4    2 + 4/N + 4    2 + 4/N + 4/N    4/N + 4/N
///
/// If R replicas divide the optimizer's state (placement.h), a slice is 1/R of a part. At stages 1
/// and 2 the FP32 slice of 16-bit compute takes 4/NR. At stage 3 the part is kept in the compute
/// type, like the full buffer at stage 2, and gradients take 4/N. In total this is 4/N + 4/N in
/// f32, and 2/N + 4/NR + 4/N in 16 bits.
///
/// With owners (placement.h), W workers hold no FP32 slices, and N owners hold nothing else but
/// slices. In 16-bit compute, with gradients reduced in every micro-step:
///
///                     worker, stages 1-2   worker, stage 3   owner
///   16-bit            2                    2/W               2/N + 4/N + 4/N
///
/// A unit may have frozen parameters as well as trained ones (all of the above). They lie in a
/// separate flat buffer, in the compute type: whole at stages 0-2, sliced at stage 3. They have no
/// gradients, FP32 slices or moments. Reductions, optimizers, norms and checkpoints follow `spec`
/// and `layout`, so they never see them. Bytes per frozen parameter:
///
///                     stages 0-2   stage 3
///   f32               4            4/N
///   16-bit            2            2/N
///
/// Some frozen parameters may be quantised (kernels/nf4.h). They lie in another flat buffer, at
/// 33/64 bytes per parameter: whole at stages 0-2, sliced at stage 3. They are used from gather
/// slots at every stage. The ranges of their scales, 4 bytes for 16,384 parameters, are whole at
/// every stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kinds.h"
#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"
#include "sharding/zero/flat_layout.h"
#include "sharding/zero/placement.h"

namespace sherd::sharding {

struct Precision {
  DType parameters = DType::kF32;  ///< compute and gather
  DType reduce = DType::kF32;      ///< a micro-step's gradient, and its reduction
  DType accumulate = DType::kF32;  ///< gradients added over micro-steps
  /// How ranks send parameters and gradients. kF32: in the types above. Otherwise in blocks
  /// (kernels/block_codec.h): gathers round the FP32 slices to them at every stage; gradients are
  /// formed as f32, and each rank's is rounded before they are added.
  kernels::BlockFormat gather_blocks = kernels::BlockFormat::kF32;
  kernels::BlockFormat reduce_blocks = kernels::BlockFormat::kF32;
  /// How replicas send the sums of their groups, which are accumulated in f32. kF32: in
  /// `accumulate`. Otherwise in blocks; groups of the batch are rounded to them, too.
  kernels::BlockFormat replica_blocks = kernels::BlockFormat::kF32;
};

/// Which state is elsewhere between uses (core/offload_home.h), and how it is brought into memory.
struct OffloadOptions {
  bool moments = false;     ///< the optimizer's
  bool master = false;      ///< FP32 parameters of 16-bit compute, where a rounded copy is resident
  bool parameters = false;  ///< at stage 3: the slices that ranks gather
  bool on_host = false;     ///< where, for a GPU: in the host's memory instead of a file
  bool host_updates = false;  ///< the host's cores update what is there (optim/host_update.h)
  /// Staging memory of a rank: several blocks of all kinds of state.
  std::int64_t buffer_bytes = 0;

  bool active() const { return moments || master || parameters; }
  bool operator==(const OffloadOptions&) const = default;
};

/// When units are gathered (slot_schedule.h).
struct GatherOptions {
  int prefetch_depth = 1;
  bool reshard_after_forward = true;
};

/// A unit on a mesh, before any rank holds it. It determines memory and traffic.
struct UnitPlan {
  UnitPlan(UnitSpec spec, const Placement& placement, const Precision& precision, const Mesh& mesh,
           std::vector<ParameterSpec> frozen = {}, std::vector<ParameterSpec> quantised = {});

  /// A tied matrix is used at both ends of a pipeline. If these are on different ranks, each holds
  /// the unit. Both add their gradients at the end of the step; the first rank counts and saves the
  /// unit.
  struct Tie {
    int first_rank = 0, last_rank = 0;  ///< world ranks
    bool is_first = true;               ///< whether this rank is the first
  };
  std::optional<Tie> tie{};
  /// This rank has both ends of a tied matrix and accumulates their gradients separately, the
  /// head's in a second accumulator. They are added at the end of the step. The sum is the one that
  /// two ranks of a pipeline form.
  bool ends_apart = false;
  /// Number of neighbours in the ZeRO group with parts of the same micro-batch's gradient, which
  /// are summed as a balanced tree: context ranks with canonical sums (docs/precision.md). 1: sums
  /// are in rank order.
  int tree_of_ranks = 1;
  /// Where FP32 parameters are that are buffers of their own and that only the optimizer uses.
  /// Elements of a block on disk; 0: they are in memory.
  std::int64_t fp32_disk_block = 0;
  /// Per parameter: whether the backward may add its gradient to the accumulated one, if that is
  /// full (gradient_reduction.h). Empty: none.
  std::vector<bool> may_add{};
  /// Whether the sum over replicas is a compressed one (replica_sum.h), which is given to
  /// GradientReduction; also with one replica.
  bool compressed_sum = false;

  UnitSpec spec;  ///< the trained parameters
  Placement placement;
  Precision precision;
  FlatLayout layout;  ///< one slice for each rank of a group along slice_axes(placement)
  int num_parts;      ///< one for each rank of the ZeRO group
  std::vector<ParameterSpec> frozen;
  FlatLayout frozen_layout;
  std::vector<ParameterSpec> quantised;  ///< also frozen
  FlatLayout quantised_layout;
  int num_replicas;  ///< ranks along `replica_axes`: a slice's gradient is summed over them
  /// Gradients that this rank forms in a micro-step, one after another: one for each rank along
  /// Placement::boxes, of that rank's micro-batch.
  int num_links;

  /// The ranks that gather and reduce it, and the ranks that have the same part.
  Callers group() const { return {.count = num_parts, .axes = placement.group}; }
  Callers replicas() const { return {.count = num_replicas, .axes = replica_axes(placement)}; }

  bool trains() const { return !spec.parameters.empty(); }
  bool is_workers() const { return placement.role == Role::kWorker; }
  bool is_owners() const { return placement.role == Role::kOwner; }
  bool has_owners() const { return placement.role != Role::kAll; }
  bool gathers_blocks() const { return precision.gather_blocks != kernels::BlockFormat::kF32; }
  bool reduces_blocks() const { return precision.reduce_blocks != kernels::BlockFormat::kF32; }
  bool adds_replicas_in_blocks() const {
    return precision.replica_blocks != kernels::BlockFormat::kF32;
  }
  /// Whether computation uses a rounded copy of the FP32 parameters.
  bool rounds_parameters() const { return precision.parameters != DType::kF32 || gathers_blocks(); }
  bool has_frozen() const { return !frozen.empty(); }
  bool has_quantised() const { return !quantised.empty(); }
  int slices_per_part() const { return layout.num_slices() / num_parts; }
  std::int64_t part_numel() const { return layout.numel() / num_parts; }
  /// Whether a part consists of several slices: replicas divide the optimizer's state.
  bool divides_parts() const { return slices_per_part() > 1; }
  /// Whether the unit is used from a slot: gathered, or decoded there.
  bool needs_slot() const { return placement.parameters_sharded() || has_quantised(); }
  /// One view per parameter, all in the order of the model's table. Views of a buffer that isn't
  /// given are empty.
  std::vector<Tensor> views(const Tensor& trained_full, const Tensor& frozen_full,
                            const Tensor& quantised_full = {}) const;

  /// Bytes of a slice of quantised parameters: its codes, then the codes of its scales.
  std::int64_t quantised_slice_bytes() const;
  /// Index of the first range of quantised parameter `parameter` among the unit's ranges. If
  /// `parameter` is the number of parameters, this is the number of ranges.
  std::int64_t first_range(int parameter) const;

  /// Elements of the slices that one rank updates: all of them at stage 0, its own otherwise; none
  /// if there are owners and it isn't one.
  std::int64_t updated_numel() const {
    if (is_workers()) return 0;
    return placement.optimizer_sharded() ? layout.slice_numel() : layout.numel();
  }
};

/// The parts of the unit's flat buffer that count in sums over tensor ranks, ascending. If
/// parameters aren't split, this is everything, padding included.
std::vector<SliceRange> counted_ranges(const UnitPlan& unit);

/// The buffers that a rank keeps for a unit between steps.
struct UnitBuffers {
  std::optional<BufferSpec> resident;  ///< stages 0-2: full; a divided part at stage 3
  std::optional<BufferSpec> coded;     ///< instead of that part, if it is gathered in blocks
  /// 16-bit compute, gathers in blocks, and where nothing is resident.
  std::optional<BufferSpec> fp32_parameters;
  std::optional<BufferSpec> published;  ///< an owner's, if it publishes late
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

  /// Parameters in compute type: full at stages 0-2; at stage 3 this rank's part if it is divided,
  /// else empty.
  const Tensor& resident_parameters() const { return resident_.tensor(); }
  /// This rank's part of the resident parameters.
  Tensor resident_part() const;
  /// The bytes of this rank's part (coded_gather.h), if they are resident; otherwise empty.
  Tensor coded_part() const { return coded_ ? coded_.tensor() : Tensor{}; }
  /// The numbers of this rank's part and slice.
  int own_part() const { return own_slice_ / plan_.slices_per_part(); }
  int own_slice() const { return own_slice_; }
  /// Part `own_part()` of a full buffer.
  Tensor part_of(const Tensor& full) const {
    return full.part(own_part() * plan_.part_numel(), plan_.part_numel());
  }
  /// Whether sums over all ranks take the slice from this rank; others may hold copies.
  bool contributes_slice() const {
    return first_of_copies_ && !is_second_end() && !plan_.is_workers();
  }
  /// The same for sums over the ranks at one position of the pipeline.
  bool first_of_copies() const { return first_of_copies_; }
  /// The parts of the slice that count in sums over all ranks, ascending, if `contributes_slice`:
  /// everything except copies of what another tensor rank has.
  const std::vector<SliceRange>& counted_ranges() const { return counted_ranges_; }
  /// The range of the slice that this rank writes to a checkpoint.
  const SliceRange& saved_range() const { return saved_range_; }
  /// The slices that this rank updates: all of them at stage 0, its own otherwise. A worker that has
  /// owners updates none.
  const std::vector<int>& updated_slices() const { return updated_slices_; }
  /// The FP32 parameters of slice `slice_index` (one of `updated_slices`).
  Tensor fp32_slice(int slice_index) const;
  /// The FP32 slices, if they are on disk or on the host; otherwise empty.
  Tensor on_disk() const {
    return plan_.fp32_disk_block > 0 && fp32_parameters_ ? fp32_parameters_.tensor() : Tensor{};
  }
  /// Accumulated gradients: full, or this rank's part if `placement().gradients_sharded()`.
  const Tensor& gradients() const { return gradients_.tensor(); }
  /// The accumulated gradient of slice `slice_index`.
  Tensor gradient(int slice_index) const;

  /// Whether this rank counts its frozen parameters; other replicas may hold copies.
  bool contributes_frozen() const { return first_replica_ && !is_second_end(); }
  /// The frozen parameters in compute type: full, or this rank's slice at stage 3. Their slices are
  /// parts, because optimizers have no state for them.
  const Tensor& frozen() const { return frozen_.tensor(); }
  /// The frozen slices that this rank holds, and one of them.
  std::vector<int> frozen_slices() const;
  Tensor frozen_slice(int slice_index) const;

  /// Quantised parameters, u8: all slices in order, or this rank's slice at stage 3. The slices
  /// have the same numbers as frozen ones.
  const Tensor& quantised() const { return quantised_.tensor(); }
  Tensor quantised_slice(int slice_index) const;
  /// The ranges of one quantised parameter, f32; the mean comes first.
  Tensor ranges(int parameter) const;

  /// What an owner has published, if it does so late: its slice in the compute type, which workers
  /// have. Otherwise empty.
  Tensor published() const { return published_ ? published_.tensor() : Tensor{}; }

  /// Slice `slice_index` of the resident parameters, if they are a separate buffer: the rounded
  /// FP32 parameters. Otherwise empty.
  Tensor rounded_slice(int slice_index) const;

 private:
  bool is_second_end() const { return plan_.tie && !plan_.tie->is_first; }

  /// A slice of a buffer that holds everything, this rank's part, or only the slice.
  Tensor slice_in(const Tensor& held, int slice_index) const;

  UnitPlan plan_;
  int own_slice_;
  bool first_of_copies_, first_replica_;
  SliceRange saved_range_;
  std::vector<SliceRange> counted_ranges_;
  std::vector<int> updated_slices_;
  Buffer resident_, coded_;
  Buffer fp32_parameters_;
  Buffer published_;
  Buffer gradients_;
  Buffer frozen_;
  Buffer quantised_, ranges_;
};

/// Where a piece of a quantised parameter lies in its slice's bytes.
struct QuantisedPiece {
  Tensor codes, scale_codes;
};
QuantisedPiece quantised_piece(const Tensor& slice_bytes, const Piece& piece);

std::vector<UnitPlan> plans_of(const std::vector<UnitState>& units);

/// A model on a mesh. It determines every rank's memory, traffic and state.
struct ShardingPlan {
  Mesh mesh;
  std::vector<UnitPlan> units;
};

}  // namespace sherd::sharding
