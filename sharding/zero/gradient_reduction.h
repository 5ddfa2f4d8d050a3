/// Reduces gradients from the backward pass to the slices that are updated: open -> close.
///
/// A micro-step's gradient is formed from zero, in a gradient slot, and added to the accumulator
/// once, unless the backward adds it there itself. The first micro-step writes the accumulator. The
/// placement decides which path the gradient takes:
///
///   every micro-step (stages 2-3;   slot -> reduce_scatter onto the accumulated part
///     0-1 if grad_sync says so)
///   at the boundary (stages 0-1;    slot -> added to the full accumulator; after the last
///     2-3 if grad_sync says so)     micro-step all_reduce (stage 0) or reduce_scatter in place
///   at the boundary, if may_add     accumulator: the backward itself adds (UnitPlan::may_add)
///   stage 0, every micro-step       and after the last one an all_gather of the sums
///   hybrid sharding                 before it, an all_reduce of the part over the replicas; a
///                                     reduce_scatter if they divide the optimizer's state
///   a matrix tied across a          in `finish`, an all_reduce between both ends. It waits for the
///     pipeline's ends                 other end's last unit, so nothing may be queued after it
///   both ends here, but apart       each end is reduced like a separate unit; `finish` adds both
///
/// The reduction of every micro-step is added to the accumulated sum: acc + g_0 + g_1 + ..., in
/// rank order. So micro-batch (micro_step * ranks + rank) of the step is added at the same place as
/// on a single rank. This is the *chain*, bit-identical for every number of ranks. If neighbours
/// have parts of one micro-batch, these are added as a tree, which is one link of the chain
/// (UnitPlan::tree_of_ranks). If the unit's boxes are divided over E ranks (Placement::boxes), a
/// rank forms E gradients per micro-step, of those ranks' micro-batches in order, and each is a
/// reduction: micro-batch ((micro_step * E + e) * ranks + rank). With Placement::batch_groups above
/// 1, each group of the batch has its own chain, in a second accumulator. When it is complete, it
/// is added to the first accumulator.
///
/// With Precision::reduce_blocks, coded_reduction.h replaces the reduce_scatter. Each rank's
/// gradient is rounded to blocks before it is added, also on a rank alone, so the chain remains.
/// Stage 0 then has no all_reduce: the sums are gathered as they are. With
/// Precision::replica_blocks, the sum of a replica, or of a group of the batch, is rounded before it
/// is added to others.
///
/// Sums over replicas are replica_sum.h's, plain, in blocks or compressed.
///
/// With owners, a worker's reduction is a push to them (sharding/zero/owner_exchange.h), from its slot
/// or its full accumulator. An owner only closes units, in the workers' order, and adds what comes.
///
/// With kEveryMicroStep, blocks have two slots: the backward of unit i writes one while the
/// reduction of unit i + 1 empties the other. With kBoundary they have one, because the compute
/// stream itself empties it. The edges have one; a tied matrix waits there between the head's
/// contribution and the embedding's. There are no slots if the only micro-step writes a full
/// accumulator. Reductions run on the reduce stream, in the order of `close`, which is the same on
/// every rank.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sharding/mesh/traffic.h"
#include "sharding/zero/coded_reduction.h"
#include "sharding/zero/owner_exchange.h"
#include "sharding/zero/replica_sum.h"
#include "sharding/zero/unit.h"

namespace sherd::sharding {

class Communicator;
class Marks;

/// The pool of slots and, per unit, the sum of one group of the batch; any of them may be missing.
struct ReductionBuffers {
  struct Slot {
    UnitClass unit_class;
    BufferSpec buffer;
  };
  std::vector<Slot> slots;
  std::vector<std::optional<BufferSpec>> groups;  ///< for a unit with ends apart: the embedding's
  /// If a unit's ends are apart: the head's accumulator, and the sum of its groups.
  std::optional<BufferSpec> head_end, head_end_group;
  std::vector<BufferSpec> coded;  ///< gradients in blocks

  std::vector<BufferSpec> list() const;
};
ReductionBuffers reduction_buffers(const std::vector<UnitPlan>& units, int num_micro_steps);

/// What a step sends for gradients.
Traffic gradient_traffic(const std::vector<UnitPlan>& units, int num_micro_steps);

/// Whether a tied matrix's gradient comes from the embedding or the head, if UnitPlan::ends_apart;
/// otherwise kUnit.
enum class UnitEnd { kUnit, kHead };

class GradientReduction {
 public:
  /// `compressed`: the sum of units with UnitPlan::compressed_sum, on every rank alike.
  GradientReduction(const Rank& rank, const std::vector<UnitState>& units, int num_micro_steps,
                    ReplicaSum* compressed = nullptr);
  ~GradientReduction();

  void begin_micro_step(int micro_step);
  int micro_step() const { return micro_step_; }
  /// Where the backward writes this unit's gradient: one view per parameter, empty for frozen ones.
  /// Each must be written, not added to, unless `adds` says otherwise. Opening an open unit again
  /// returns the same views and their content. A unit with several links (UnitPlan::num_links) is
  /// opened and closed for each, in order.
  std::vector<Tensor> open(int unit, UnitEnd end = UnitEnd::kUnit);
  /// Whether the backward must add to the gradients that may be added (UnitPlan::may_add), in this
  /// micro-step.
  bool adds(int unit) const;
  /// The compute stream has written the gradient: accumulate it, and reduce it when it is time. An
  /// owner opens nothing.
  void close(int unit, UnitEnd end = UnitEnd::kUnit);
  /// After the last micro-step: the compute stream waits until every slice has its gradient.
  void finish();

  /// Called in `close` with the unit's own gradient before its reduction
  /// (engine/train/diagnosis.h).
  std::function<void(int unit, UnitEnd end, const Tensor& full)> inspect;

 private:
  struct Slot {
    UnitClass unit_class;
    Buffer buffer;
    int unit = -1;           // the unit whose layout it has
    std::int64_t life = -1;  // the buffer's life when it was laid out
    bool open = false;
    std::unique_ptr<Event> written, free;
    std::size_t marks = 0;  // number of marks_ recorded before `free`
  };

  /// The number of the next reduction of the unit at a place, in the step.
  int reduction(int at) const { return micro_step_ * state_at(at).plan().num_links + links_[at]; }
  bool first(int at) const { return reduction(at) == 0; }
  bool last(int at) const;
  bool into_accumulator(int at) const;
  /// `at` is a place: a unit's number or, after all units, the head's end of the unit whose ends
  /// are apart.
  Slot& slot_for(int at);
  void zero_padding(const UnitState& unit, const Tensor& full);
  void add_the_rest(int at, const Tensor& full);
  void reduce(int at, int index, const Tensor& full, bool added);
  void reduce_slot(int at, Slot& slot);
  void add_ranks(int at, const Tensor& full, const Tensor& sum, const Addends& addends);
  Addends onto_sum(int at) const;
  void add_group(int at, const Tensor& group, const Tensor& sum);
  void reduce_in_place(int at);
  void finish_unit(int at);
  void add_both_ends(int unit);
  void add_head_end();
  void set_up(int at, const Rank& rank);
  int place_of(int unit, UnitEnd end) const;
  const UnitState& state_at(int at) const { return (*units_)[unit_at(at)]; }
  int unit_at(int at) const { return at < static_cast<int>(units_->size()) ? at : apart_; }
  /// The accumulator: all that this rank has of it, its own part, and its own slice.
  Tensor gradients_at(int at) const;
  Tensor own_part_at(int at) const;
  Tensor own_gradient_at(int at) const;
  Tensor updated_at(int at) const;

  const Rank* rank_;
  const std::vector<UnitState>* units_;
  int num_micro_steps_;
  CodedReduction coded_;
  PlainReplicaSum plain_sum_;
  CodedReplicaSum coded_sum_;
  ReplicaSum* compressed_sum_;
  OwnerPush owners_;
  int micro_step_ = 0;
  std::vector<Slot> slots_;
  int apart_ = -1;   // the unit whose ends are apart; -1: none
  Buffer head_end_;  // its head's accumulator
  // Indexed by place: the units, then that head's end.
  std::vector<Communicator*> communicators_;
  std::vector<ReplicaSum*> replicas_;                // null: one, whose sum it is
  std::vector<std::shared_ptr<Communicator>> ends_;  // by unit; null: no second end
  std::map<UnitClass, std::size_t> turns_;           // by slot class
  std::vector<int> open_slot_;  // by place: index of the slot, kAccumulator, or kClosed
  std::vector<int> links_;      // by place: those that this micro-step has closed
  std::vector<Buffer>
      groups_;  // by place: the sum of the batch's current group, after the first group
  std::vector<std::unique_ptr<Event>>
      written_;  // by place: the full accumulator is ready to reduce
  std::unique_ptr<Event> reduced_;
  std::size_t zero_waits_;        // the kind of waits for the ZeRO group
  std::unique_ptr<Marks> marks_;  // of the reduce stream, if it does more than that group's work
};

}  // namespace sherd::sharding
