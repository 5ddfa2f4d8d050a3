/// Gathers full parameters just before they are used: gather -> get -> release.
///
/// The order in which a step uses units is known beforehand (`plan`). While the compute stream
/// works on one use, the gather stream fills slots for the next `prefetch_depth` uses:
///
///   compute   | use 0 | use 1 | use 2 | use 3 | ...
///   gather    | 1 | 2 |  | 3 |   | 4 |
///
/// At stages 0-2 full parameters are resident, and a use only waits for the unit's last publish. If
/// replicas divide the optimizer states, a publish starts with a gather of the part among them, at
/// stage 3 too.
/// At stage 3 full parameters live in a fixed pool of slots, one pool per unit class. Each slot is
/// as large as the largest unit of the class. A slot remembers its unit until the unit's parameters
/// change (`publish`) or its memory is used for something else. Two events guard it:
///   ready   the gather is done: the compute stream waits for it before reading
///   free    the last reader is done: the gather stream waits for it before overwriting
/// A use takes its unit from a slot if it is still there (the last prefetch_depth + 1 blocks of the
/// forward are gathered once). Otherwise the slot whose content is needed latest is overwritten,
/// according to the plan. Every rank makes the same choices, so collectives match by construction.
///
/// With owners, a publish is their `pull` (sharding/zero/owner_exchange.h): a worker receives what
/// it keeps. At stage 3, workers gather that among themselves. Late publishing keeps what is
/// published, and `publish_kept` sends it; `publish` still sends the newest values.
///
/// Frozen parameters (sharding/zero/unit.h) are gathered with the trained ones, in a separate
/// buffer and collective; they are never published. Quantised parameters are gathered as bytes
/// where they are sharded. They are decoded into a slot at every stage.
///
/// With Precision::gather_blocks, gathers and publishes send blocks (coded_gather.h), and every
/// stage computes with the rounded parameters. Frozen parameters are sent in the compute type.
///
/// Slots: prefetch_depth + 1 for blocks (all blocks with `reshard_after_forward` off: the forward's
/// gather then serves the backward too), one for the edges.
/// Errors: misuse (a use out of order, a release without a get) is our bug (SHERD_CHECK).
#pragma once

#include <memory>
#include <vector>

#include "sharding/mesh/traffic.h"
#include "sharding/zero/coded_gather.h"
#include "sharding/zero/owner_exchange.h"
#include "sharding/zero/slot_schedule.h"
#include "sharding/zero/unit.h"

namespace sherd::sharding {

class Communicator;

/// What a step of `num_micro_steps` times `uses` sends for parameters: gathers at stage 3, and
/// publishes at stages 1 and 2.
Traffic parameter_traffic(const std::vector<UnitPlan>& units, const GatherOptions& options,
                          const std::vector<int>& uses, int num_micro_steps);

class ParameterGather {
 public:
  ParameterGather(const Rank& rank, const std::vector<UnitState>& units,
                  const GatherOptions& options);

  /// The units that will be used from now on, in order. The previous plan must be finished.
  void plan(std::vector<int> uses);
  /// The next planned use: the compute stream waits until the unit's parameters are there. Returns
  /// one view per parameter, trained or not, in the table's order, valid until `release`.
  std::vector<Tensor> get(int unit);
  /// On the compute stream, only work enqueued so far reads this use.
  void release(int unit);
  /// Call after the compute stream has updated this rank's slices: sends them to every rank. At
  /// stages 1-2 this is an all-gather on the gather stream that overlaps the next forward; at stage
  /// 3 the next gather does it. `rounded`: the update has already rounded them into the resident
  /// parameters. `updating`: the stream with the update, if it isn't the compute stream; then only
  /// uses of this unit wait for it.
  void publish(int unit, bool rounded = false, Stream* updating = nullptr);
  /// With owners that publish late. `refresh`: what is kept becomes the newest values first.
  void publish_kept(int unit, bool refresh);
  /// The compute stream waits until what an owner has published is sent.
  void settle();
  /// Drops the rest of the plan (after an error, or a step that ends early).
  void abandon();

 private:
  struct Slot {
    Buffer buffer, frozen, quantised;
    std::int64_t life = -1;  // of the buffers when they were filled

    std::int64_t life_now() const {
      return buffer ? buffer.life() : frozen ? frozen.life() : quantised.life();
    }
    std::unique_ptr<Event> ready, free;
  };

  bool sharded(int unit) const { return (*units_)[unit].placement().parameters_sharded(); }
  void forget_lost_slots();
  void prefetch();
  void gather_into(Slot& slot, int unit);
  void publish_blocks(int unit);
  void pull(int unit, const Tensor& own);
  void gather_frozen_into(const Slot& slot, int unit);
  void decode_into(const Slot& slot, int unit);
  void cast_into(Stream& stream, const Tensor& from, const Tensor& to);

  const Rank* rank_;
  const std::vector<UnitState>* units_;
  SlotSchedule schedule_;
  std::vector<Slot> slots_;
  std::unique_ptr<Stream> at_once_;  // does its work on the calling thread; where state is on disk
  Buffer quantised_;                 // bytes of all slices of a unit
  CodedGather coded_;
  OwnerPull owners_;
  // By unit: its ZeRO group, and the replicas that divide its parts, if any.
  std::vector<Communicator*> communicators_, replicas_;
  std::vector<std::unique_ptr<Event>> updated_;    // by unit: the slice holds its new values
  std::vector<bool> updated_elsewhere_;            // by unit: not by the compute stream
  std::vector<std::unique_ptr<Event>> told_;       // by unit: replicas have exchanged updates
  std::vector<std::unique_ptr<Event>> published_;  // by unit: the full buffer has them too
  std::unique_ptr<Event> began_;                   // slots' memory is free for this plan
};

}  // namespace sherd::sharding
