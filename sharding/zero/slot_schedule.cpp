#include "sharding/zero/slot_schedule.h"

#include <algorithm>
#include <map>

#include "sharding/zero/coded_gather.h"

namespace sherd::sharding {
namespace {

bool follows_block(const UnitPlan& unit) {
  return unit.spec.unit_class > UnitClass::kBlock;
}

}  // namespace

std::vector<GatherSlot> gather_slots(const std::vector<UnitPlan>& units,
                                     const GatherOptions& options) {
  struct ClassSize {
    int num_units = 0;
    std::int64_t largest = 0, largest_frozen = 0, largest_quantised = 0;
    DType dtype = DType::kF32;
  };
  std::map<UnitClass, ClassSize> classes;
  for (const UnitPlan& unit : units) {
    if (!unit.needs_slot()) continue;
    ClassSize& size = classes[unit.spec.unit_class];
    SHERD_CHECK(size.num_units == 0 || size.dtype == unit.precision.parameters,
                "{} shares slots with units of another type", unit.spec.name);
    size.dtype = unit.precision.parameters;
    ++size.num_units;
    size.largest_quantised = std::max(size.largest_quantised, unit.quantised_layout.numel());
    if (!unit.placement.parameters_sharded()) continue;
    size.largest = std::max(size.largest, unit.layout.numel());
    size.largest_frozen = std::max(size.largest_frozen, unit.frozen_layout.numel());
  }
  std::vector<GatherSlot> slots;
  for (const auto& [unit_class, size] : classes) {
    const bool block = is_of_layers(unit_class);
    int num_slots = 1;
    if (block) {
      num_slots = options.reshard_after_forward
                      ? std::min(size.num_units, options.prefetch_depth + 1)
                      : size.num_units;
    }
    const auto buffer = [dtype = size.dtype](std::string name, std::int64_t numel) {
      std::optional<BufferSpec> spec;
      if (numel > 0) {
        spec = {std::move(name), Category::kGatheredParameters, dtype, numel,
                kForwardToBackward | kEvaluation};
      }
      return spec;
    };
    for (int i = 0; i < num_slots; ++i) {
      const std::string name = fmt::format("gather.{}.{}", name_of(unit_class), i);
      slots.push_back({unit_class, buffer(name, size.largest),
                       buffer(name + ".frozen", size.largest_frozen),
                       buffer(name + ".quantised", size.largest_quantised)});
    }
  }
  return slots;
}

std::optional<BufferSpec> quantised_gather_buffer(const std::vector<UnitPlan>& units) {
  std::int64_t bytes = 0;
  for (const UnitPlan& unit : units) {
    if (!unit.placement.parameters_sharded()) continue;
    bytes = std::max(bytes, unit.quantised_layout.num_slices() * unit.quantised_slice_bytes());
  }
  if (bytes == 0) return std::nullopt;
  return BufferSpec{"gather.nf4", Category::kGatheredParameters, DType::kU8, bytes,
                    kForwardToBackward | kEvaluation};
}

std::vector<BufferSpec> gather_buffers(const std::vector<UnitPlan>& units,
                                       const GatherOptions& options) {
  std::vector<BufferSpec> buffers;
  for (const GatherSlot& slot : gather_slots(units, options)) {
    for (BufferSpec& buffer : present({&slot.buffer, &slot.frozen, &slot.quantised})) {
      buffers.push_back(std::move(buffer));
    }
  }
  if (auto bytes = quantised_gather_buffer(units)) buffers.push_back(std::move(*bytes));
  if (auto bytes = coded_gather_buffer(units)) buffers.push_back(std::move(*bytes));
  return buffers;
}

SlotSchedule::SlotSchedule(const std::vector<UnitPlan>& units, const GatherOptions& options)
    : prefetch_depth_(options.prefetch_depth) {
  for (const UnitPlan& unit : units) {
    names_.push_back(unit.spec.name);
    classes_.push_back(unit.spec.unit_class);
    gathered_.push_back(unit.needs_slot());
    follows_.push_back(follows_block(unit));
  }
  for (const GatherSlot& slot : gather_slots(units, options)) {
    slots_.push_back({slot.unit_class, -1, 0});
  }
}

void SlotSchedule::plan(std::vector<int> uses) {
  SHERD_CHECK(next_ == uses_.size() && in_use_.empty(),
              "a new plan with {} uses left of the old one", uses_.size() - next_ + in_use_.size());
  uses_ = std::move(uses);
  next_ = promised_ = 0;
}

void SlotSchedule::abandon() {
  for (Slot& slot : slots_) slot.pins = 0;
  uses_.clear();
  next_ = promised_ = 0;
  in_use_.clear();
}

void SlotSchedule::get(int unit) {
  SHERD_CHECK(in_use_.empty() || follows_[unit], "get of {} before the release of {}", name(unit),
              name(in_use_.front()));
  SHERD_CHECK(next_ < uses_.size() && uses_[next_] == unit, "get of {} out of the plan's order",
              name(unit));
  in_use_.push_back(unit);
  ++next_;
}

int SlotSchedule::slot_of(int unit) const {
  const int slot = find(unit);
  SHERD_CHECK(slot >= 0 && slots_[slot].pins > 0, "no slot for {}", name(unit));
  return slot;
}

int SlotSchedule::release(int unit) {
  const auto use = std::ranges::find(in_use_, unit);
  SHERD_CHECK(use != in_use_.end(), "release of {} without a get", name(unit));
  in_use_.erase(use);
  if (!gathered_[unit]) return -1;
  const int slot = slot_of(unit);
  --slots_[slot].pins;
  return slot;
}

std::vector<SlotSchedule::Fill> SlotSchedule::prefetch() {
  if (slots_.empty()) return {};
  const std::size_t end = end_of_promises();
  std::vector<Fill> fills;
  for (; promised_ < end; ++promised_) {
    const int unit = uses_[promised_];
    if (!gathered_[unit]) continue;
    int slot = find(unit);
    if (slot < 0) {
      slot = evict(classes_[unit]);
      if (slot < 0) break;
      slots_[slot].unit = unit;
      fills.push_back({slot, unit});
    }
    ++slots_[slot].pins;
  }
  return fills;
}

// The end of the next `prefetch_depth` uses, each with the uses that follow it.
std::size_t SlotSchedule::end_of_promises() const {
  int ahead = prefetch_depth_;
  std::size_t end = next_;
  while (end < uses_.size() && (follows_[uses_[end]] || ahead-- > 0)) ++end;
  return end;
}

int SlotSchedule::find(int unit) const {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].unit == unit) return static_cast<int>(slot);
  }
  return -1;
}

int SlotSchedule::evict(UnitClass unit_class) const {
  int latest = -1;
  std::size_t latest_use = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.unit_class != unit_class || slot.pins > 0) continue;
    const std::size_t use = slot.unit < 0 ? uses_.size() + 1 : next_use(slot.unit);
    if (latest < 0 || use > latest_use) {
      latest = static_cast<int>(i);
      latest_use = use;
    }
  }
  return latest;
}

std::size_t SlotSchedule::next_use(int unit) const {
  std::size_t use = promised_ + 1;
  while (use < uses_.size() && uses_[use] != unit) ++use;
  return use;
}

void SlotSchedule::forget_unit(int unit) {
  const int slot = find(unit);
  if (slot >= 0) forget_slot(slot);
}

void SlotSchedule::forget_slot(int slot) {
  slots_[slot].unit = -1;
}

// Slots are stale when a step begins, since it updates every unit. A micro-step depends on the uses
// up to the next one's end, or as far as prefetches reach. So from some micro-step on all are alike
// except the last, and a step of many needn't be simulated fully.
std::vector<std::int64_t> count_gathers(const std::vector<UnitPlan>& units,
                                        const GatherOptions& options, const std::vector<int>& uses,
                                        int num_micro_steps) {
  if (uses.empty()) return std::vector<std::int64_t>(units.size(), 0);
  const auto played = [&](int micro_steps) {
    std::vector<int> all;
    for (int i = 0; i < micro_steps; ++i) all.insert(all.end(), uses.begin(), uses.end());
    SlotSchedule schedule(units, options);
    std::vector<std::int64_t> counts(units.size(), 0);
    schedule.plan(all);
    const auto prefetch = [&] {
      for (const SlotSchedule::Fill& fill : schedule.prefetch()) ++counts[fill.unit];
    };
    std::vector<int> in_use;  // a block and the parts that follow it
    for (std::size_t i = 0; i < all.size(); ++i) {
      schedule.get(all[i]);
      in_use.push_back(all[i]);
      prefetch();
      if (i + 1 < all.size() && follows_block(units[all[i + 1]])) continue;
      for (const int unit : in_use) {
        schedule.release(unit);
        prefetch();
      }
      in_use.clear();
    }
    return counts;
  };
  const int reach = options.prefetch_depth / static_cast<int>(uses.size());
  const int alike_from = 4 + reach;
  std::vector<std::int64_t> counts = played(std::min(num_micro_steps, alike_from));
  if (num_micro_steps <= alike_from) return counts;
  const std::vector<std::int64_t> one_more = played(alike_from + 1);
  for (std::size_t unit = 0; unit < counts.size(); ++unit) {
    counts[unit] += (one_more[unit] - counts[unit]) * (num_micro_steps - alike_from);
  }
  return counts;
}

}  // namespace sherd::sharding
