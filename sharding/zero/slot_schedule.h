/// Which slot each use of a unit gets, and when it is filled: the decisions of ParameterGather
/// without its buffers. They depend only on the order of uses. So every rank makes the same ones,
/// and a plan can count gathers before a run.
///
/// Up to `prefetch_depth` uses after the current one are promised a slot, in order. A layer's
/// further parts are used together with its block. Their uses follow the block's and count as one
/// with it; several may be under way. If no slot holds the unit of a use, one is filled. Among the
/// slots not promised to a use, it is the one whose content is needed latest (Belady 1966: with the
/// future known, no other choice fills fewer).
///
/// Errors   misuse (a use out of order, a release without a get) is our bug (SHERD_CHECK).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharding/zero/unit.h"

namespace sherd::sharding {

/// The pool of slots for the units that need one, by unit class. At stages 0-2 it has only
/// quantised parameters; the others are resident.
struct GatherSlot {
  UnitClass unit_class;
  /// For trained, frozen and quantised parameters; some may be missing.
  std::optional<BufferSpec> buffer, frozen, quantised;
};
std::vector<GatherSlot> gather_slots(const std::vector<UnitPlan>& units,
                                     const GatherOptions& options);
/// All buffers that a ParameterGather acquires.
std::vector<BufferSpec> gather_buffers(const std::vector<UnitPlan>& units,
                                       const GatherOptions& options);
/// Where the bytes of quantised parameters are gathered before they are decoded into a slot. One
/// buffer serves all slots, since the gather stream fills them one by one. None at stages 0-2.
std::optional<BufferSpec> quantised_gather_buffer(const std::vector<UnitPlan>& units);

class SlotSchedule {
 public:
  /// Fill slot `slot` with unit `unit`, overwriting its content.
  struct Fill {
    int slot = 0;
    int unit = 0;
  };

  SlotSchedule(const std::vector<UnitPlan>& units, const GatherOptions& options);

  /// The units that will be used from now on, in order. The previous plan must be finished.
  void plan(std::vector<int> uses);
  /// The next planned use begins. `prefetch` gives it a slot, unless it has one.
  void get(int unit);
  /// A use ends. Uses may end in any order. Returns the slot that it had, or -1 if the unit is
  /// resident.
  int release(int unit);
  /// Promises as many slots as depth and pool allow. Returns the fills that this needs, in order.
  std::vector<Fill> prefetch();
  /// The slot of `unit`, which is in use.
  int slot_of(int unit) const;
  /// Drops the rest of the plan.
  void abandon();

  /// This unit's slot, or this slot, no longer holds its parameters.
  void forget_unit(int unit);
  void forget_slot(int slot);

 private:
  struct Slot {
    UnitClass unit_class;
    int unit = -1;
    int pins = 0;  ///< uses that were promised this slot and haven't been released
  };
  const std::string& name(int unit) const { return names_[unit]; }
  int find(int unit) const;
  int evict(UnitClass unit_class) const;
  std::size_t next_use(int unit) const;
  std::size_t end_of_promises() const;

  std::vector<std::string> names_;
  std::vector<UnitClass> classes_;
  std::vector<bool> gathered_;  // or decoded; the others are resident
  std::vector<bool> follows_;   // a layer's further part: used together with its block
  std::vector<Slot> slots_;
  int prefetch_depth_;
  std::vector<int> uses_;
  std::size_t next_ = 0;      // the use that `get` returns next
  std::size_t promised_ = 0;  // uses before this one have a slot
  std::vector<int> in_use_;   // units
};

/// How often each unit is gathered in a step of `num_micro_steps` micro-steps with the same `uses`.
std::vector<std::int64_t> count_gathers(const std::vector<UnitPlan>& units,
                                        const GatherOptions& options, const std::vector<int>& uses,
                                        int num_micro_steps);

}  // namespace sherd::sharding
