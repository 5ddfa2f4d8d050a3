/// Where each kind of state lives. A ZeRO stage (Rajbhandari et al., arXiv:1910.02054 §5) is one
/// column of this table; there is one code path, not one per stage.
///
///   when                          stage 0        stage 1        stage 2          stage 3
///   sharded at rest               nothing        optimizer      + gradients      + parameters
///   before a unit computes        -              its publish    its publish      all-gather
///   after a unit's backward       accumulate     accumulate     reduce-scatter   reduce-scatter
///   after the last micro-step     all-reduce     reduce-scatter -                -
///   update                        every slice    own slice      own slice        own slice
///   after the update              -              all-gather     all-gather       -
///
/// Hybrid sharding: ranks along the replicate axis hold copies of all state and have different rows
/// of the batch. Once per step, after the last reduction, each all-reduces its slice of the
/// gradient with them. At stage 0 this is between a reduce-scatter and an all-gather: the cheapest
/// way over the slow link.
///
/// The replicas may also divide the optimizer's state among themselves. Each then updates its share
/// of the slice. The sum over the replicas is then a reduce-scatter, and an all-gather among them
/// follows the update. Between groups of ranks a step sends no more than before. Each rank keeps
/// 1/R of the state of its R replicas.
///
///   hybrid sharding     parameters and       optimizer       between replicas, per step
///                       gradients
///   replicas hold       along shard,         along shard,    all-reduce of gradients
///     copies              context              context
///   replicas divide     along shard,         along all       reduce-scatter of gradients,
///     the optimizer       context              three           all-gather of parameters
///
/// (ZeRO++'s hpZ, arXiv:2306.10209, keeps a second copy of the parameters inside each group, only
/// for the backward. MiCS, arXiv:2205.00119, is the first row. The second row takes as much memory
/// as hpZ, and gathers nothing between groups within a step.)
///
/// With `GradSync::kBoundary` at stages 2-3 gradients are kept unsharded until the last micro-step,
/// which saves communication and costs the memory that those stages would have saved. With
/// `GradSync::kEveryMicroStep` at stages 0-1 gradients are reduced in every micro-step.
///
/// A placement names, for each kind of state, the mesh axes over which it is sharded; along every
/// other axis ranks hold copies, or other boxes. Units of experts have one of their own.
///
/// With owners (sharding/mesh/mesh.h), the optimizer's state and its update are theirs alone. Workers
/// send them gradients and get parameters (sharding/zero/owner_exchange.h). A rank's role decides:
///
///                   parameters                          gradients               optimizer
///   stage 0-3       as above                            as above                as above
///   worker, 1-2     whole, in the compute type          a micro-step's; at the  -
///   worker, 3       a slice among workers, in that        boundary, whole sums  -
///                     type, filled once per step
///   owner           its slice among owners, rounded     its slice               its slice
///
/// A flat buffer is divided into one *slice* for each rank along `slice_axes`. If replicas divide
/// the optimizer states, a *part* consists of their slices, in order. A rank of the ZeRO group
/// gathers and reduces a part as one. Otherwise a part is a slice.
#pragma once

#include <cstdint>

#include "sharding/mesh/mesh.h"

namespace sherd::sharding {

enum class GradSync { kEveryMicroStep, kBoundary };
/// What a rank does for a unit. Without owners: everything.
enum class Role { kAll, kWorker, kOwner };

struct Placement {
  /// The ZeRO group is a group along these axes. Its ranks reduce gradients together at every
  /// stage.
  AxisSet group = zero_axes();
  /// Along these axes, ranks hold other boxes of the unit's parameters (ParameterCut), and each
  /// forms the gradient of its boxes for the tokens of all of them: the expert axis, for experts.
  AxisSet boxes{};
  /// Per kind of state, the axes over which it is sharded at rest: those of the group, or none.
  /// Optimizer states may include the replicas' axis. (Other sets fail a SHERD_CHECK.)
  AxisSet parameters{}, gradients{}, optimizer{};
  GradSync grad_sync = GradSync::kBoundary;
  /// The batch is divided into this many contiguous groups. The gradient of each is a separate sum;
  /// the sums are added in order. A world whose replicas have one group each computes the same
  /// sums.
  int batch_groups = 1;
  /// Replicas train apart: ranks along the replicate axis hold other values of the same state, and
  /// no gradient is summed over them (optim/outer_update.h).
  bool replicas_apart = false;
  bool has_gradients = true;  ///< false: the model is used, not trained
  Role role = Role::kAll;
  /// With owners: workers compute a step with the parameters before the previous step's update.
  bool published_late = false;
  /// With owners: each worker keeps a slice of the parameters; otherwise it keeps all of them.
  bool keeps_slices = false;

  bool parameters_sharded() const { return !parameters.empty(); }
  bool gradients_sharded() const { return !gradients.empty(); }
  bool optimizer_sharded() const { return !optimizer.empty(); }

  bool operator==(const Placement&) const = default;
};

/// Along these axes, ranks hold the same part and have gradients of other tokens: the sum is taken
/// over them, too. Without the replicate axis if replicas train apart.
AxisSet replica_axes(const Placement& placement);

/// The axes of the ZeRO group, and of the replicas if they divide the optimizer's state.
AxisSet slice_axes(const Placement& placement);
/// The number of `rank`'s slice. The slices of a part have successive numbers, in the order of the
/// replicas.
int slice_of(const Mesh& mesh, int rank, const Placement& placement);

enum class Replicas { kHoldCopies, kDivideOptimizer };

/// The placement of `stage`, 0 to 3, on the mesh's ZeRO axes. Gradients are unsharded if
/// `grad_sync` asks to reduce them only after the last micro-step. Replicas can divide an
/// optimizer's state if it is sharded: from stage 1 on.
Placement placement_of(int stage, GradSync grad_sync, Replicas replicas = Replicas::kHoldCopies);
/// The same with the stage's usual sync: at the boundary at stages 0 and 1, in every micro-step
/// above.
Placement placement_of(int stage);

/// The placement of a rank that is a worker or an owner, if the mesh has owners; otherwise the same.
Placement placement_of_rank(const Placement& placement, const Mesh& mesh, int rank);

/// Along these axes, ranks hold copies of a slice. Along the pipeline axis they hold other units.
/// Along the tensor axis they hold other parts of the same parameters, some of which are copies
/// (ParameterCut).
AxisSet copy_axes(const Mesh& mesh, const Placement& placement);

/// Whether `rank` counts its slice in sums over all ranks (gradient norms). Among ranks that hold
/// copies of the same slice, one does; if replicas train apart, one in each of them. For parameters that tensor ranks hold copies of, their boxes
/// decide.
bool contributes_slice(const Mesh& mesh, int rank, const Placement& placement);

/// The part of its slice of `slice_numel` elements that `rank` writes to a checkpoint. Ranks with
/// copies of a slice divide it among themselves, so every element is written once; by each replica
/// if they train apart.
struct SliceRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const SliceRange&) const = default;
};
SliceRange saved_range(const Mesh& mesh, int rank, const Placement& placement,
                       std::int64_t slice_numel);

}  // namespace sherd::sharding
