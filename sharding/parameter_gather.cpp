#include "sharding/parameter_gather.h"

#include <algorithm>
#include <map>

#include "kernels/pointwise.h"

namespace sherd::sharding {

std::vector<GatherSlot> gather_slots(const std::vector<UnitPlan>& units,
                                     const GatherOptions& options) {
  if (!units[0].placement.parameters_sharded) return {};
  struct ClassSize {
    int num_units = 0;
    std::int64_t largest = 0;
  };
  std::map<UnitClass, ClassSize> classes;
  for (const UnitPlan& unit : units) {
    ClassSize& size = classes[unit.spec.unit_class];
    ++size.num_units;
    size.largest = std::max(size.largest, unit.layout.numel());
  }
  std::vector<GatherSlot> slots;
  for (const auto& [unit_class, size] : classes) {
    const bool block = unit_class == UnitClass::kBlock;
    int num_slots = 1;
    if (block) {
      num_slots = options.reshard_after_forward
                      ? std::min(size.num_units, options.prefetch_depth + 1)
                      : size.num_units;
    }
    for (int i = 0; i < num_slots; ++i) {
      slots.push_back(
          {unit_class,
           {fmt::format("gather.{}.{}", block ? "block" : "edge", i), Category::kGatheredParameters,
            units[0].precision.parameters, size.largest, kForwardToBackward | kEvaluation}});
    }
  }
  return slots;
}

ParameterGather::ParameterGather(const Rank& rank, const std::vector<UnitState>& units,
                                 const GatherOptions& options)
    : rank_(&rank),
      units_(&units),
      prefetch_depth_(options.prefetch_depth),
      began_(rank.make_event()) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    tags_.push_back({0, rank.make_event(), rank.make_event()});
  }
  for (const GatherSlot& slot : gather_slots(plans_of(units), options)) {
    slots_.push_back({slot.unit_class, rank.memory->acquire(slot.buffer), -1, -1, -1, 0,
                      rank.make_event(), rank.make_event()});
  }
}

void ParameterGather::plan(std::vector<int> uses) {
  CHECK(current_ == uses_.size() && !in_use_, "a new plan with {} uses left of the old one",
        uses_.size() - current_);
  uses_ = std::move(uses);
  current_ = promised_ = 0;
  if (!sharded()) return;
  // What the compute stream did before may have used the slots' memory for something else.
  rank_->compute().record(*began_);
  rank_->gather().wait(*began_);
}

void ParameterGather::abandon() {
  for (Slot& slot : slots_) slot.pins = 0;
  uses_.clear();
  current_ = promised_ = 0;
  in_use_ = false;
}

std::vector<Tensor> ParameterGather::get(int unit) {
  CHECK(!in_use_, "get of {} before the release of {}", (*units_)[unit].name(),
        (*units_)[uses_[current_]].name());
  CHECK(current_ < uses_.size() && uses_[current_] == unit, "get of {} out of the plan's order",
        (*units_)[unit].name());
  in_use_ = true;
  const FlatLayout& layout = (*units_)[unit].layout();
  if (!sharded()) {
    rank_->compute().wait(*tags_[unit].published);
    return layout.views((*units_)[unit].resident_parameters());
  }
  prefetch();
  Slot* slot = find(unit);
  CHECK(slot && slot->pins > 0, "no slot for {}", (*units_)[unit].name());
  rank_->compute().wait(*slot->ready);
  return layout.views(slot->buffer.tensor().part(0, layout.numel()));
}

void ParameterGather::release(int unit) {
  CHECK(in_use_ && uses_[current_] == unit, "release of {} without a get", (*units_)[unit].name());
  in_use_ = false;
  ++current_;
  if (!sharded()) return;
  Slot* slot = find(unit);
  CHECK(slot && slot->pins > 0, "no slot to release for {}", (*units_)[unit].name());
  rank_->compute().record(*slot->free);
  --slot->pins;
  if (prefetch_depth_ > 0) prefetch();
}

// Promises slots in the order of the plan, as far as the depth and the pool allow.
void ParameterGather::prefetch() {
  const std::size_t ahead = in_use_ ? static_cast<std::size_t>(prefetch_depth_) + 1
                                    : static_cast<std::size_t>(prefetch_depth_);
  const std::size_t end = std::min(uses_.size(), current_ + ahead);
  while (promised_ < end && promise_slot(uses_[promised_])) ++promised_;
}

bool ParameterGather::promise_slot(int unit) {
  Slot* slot = find(unit);
  if (!slot) {
    slot = evict((*units_)[unit].spec().unit_class);
    if (!slot) return false;
    gather_into(*slot, unit);
  }
  ++slot->pins;
  return true;
}

ParameterGather::Slot* ParameterGather::find(int unit) {
  for (Slot& slot : slots_) {
    if (holds(slot, unit)) return &slot;
  }
  return nullptr;
}

bool ParameterGather::holds(const Slot& slot, int unit) const {
  return slot.unit == unit && slot.version == tags_[unit].version &&
         slot.life == slot.buffer.life();
}

// Of the slots that nobody was promised, the one whose content is needed latest (Belady 1966: with
// the future known, no other choice gathers less).
ParameterGather::Slot* ParameterGather::evict(UnitClass unit_class) {
  Slot* latest = nullptr;
  std::size_t latest_use = 0;
  for (Slot& slot : slots_) {
    if (slot.unit_class != unit_class || slot.pins > 0) continue;
    const bool stale = slot.unit < 0 || !holds(slot, slot.unit);
    const std::size_t use = stale ? uses_.size() + 1 : next_use(slot.unit);
    if (!latest || use > latest_use) {
      latest = &slot;
      latest_use = use;
    }
  }
  return latest;
}

std::size_t ParameterGather::next_use(int unit) const {
  std::size_t use = promised_ + 1;
  while (use < uses_.size() && uses_[use] != unit) ++use;
  return use;
}

void ParameterGather::gather_into(Slot& slot, int unit) {
  const UnitState& state = (*units_)[unit];
  Stream& stream = rank_->gather();
  const Tensor full = slot.buffer.tensor().part(0, state.layout().numel());
  stream.wait(*slot.free);
  stream.wait(*tags_[unit].updated);
  kernels::cast(stream, state.master(rank_->rank), state.layout().slice(full, rank_->rank));
  rank_->gather_communicator->all_gather(stream, state.name(), full);
  stream.record(*slot.ready);
  slot.unit = unit;
  slot.version = tags_[unit].version;
  slot.life = slot.buffer.life();
}

void ParameterGather::publish(int unit) {
  const UnitState& state = (*units_)[unit];
  UnitTag& tag = tags_[unit];
  ++tag.version;
  if (sharded()) {
    rank_->compute().record(*tag.updated);
    return;
  }
  for (const int owner : state.updated_slices()) state.refresh_resident(rank_->compute(), owner);
  if (!state.placement().optimizer_sharded) return;
  Stream& stream = rank_->gather();
  rank_->compute().record(*tag.updated);
  stream.wait(*tag.updated);
  rank_->gather_communicator->all_gather(stream, state.name(), state.resident_parameters());
  stream.record(*tag.published);
}

}  // namespace sherd::sharding
