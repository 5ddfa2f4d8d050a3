#include "sharding/zero/gradient_reduction.h"

#include <algorithm>
#include <map>

#include "kernels/pointwise.h"
#include "sharding/comm/communicator.h"

namespace sherd::sharding {
namespace {

constexpr int kClosed = -1;
constexpr int kAccumulator = -2;

bool same_type(const UnitPlan& unit) {
  return unit.precision.reduce == unit.precision.accumulate;
}
bool at_boundary(const UnitPlan& unit) {
  return unit.placement.grad_sync == GradSync::kBoundary;
}
// Otherwise the only micro-step writes the unsharded accumulator.
bool needs_slot(const UnitPlan& unit, int num_micro_steps) {
  return unit.placement.has_gradients &&
         (unit.placement.gradients_sharded() || num_micro_steps > 1 || !same_type(unit));
}
bool needs_staging(const UnitPlan& unit, int num_micro_steps) {
  return unit.placement.gradients_sharded() && (num_micro_steps > 1 || !same_type(unit));
}

// The units of a class, which share a pool of slots.
struct SlotClass {
  int num_units = 0;
  std::int64_t largest = 0;
  DType dtype = DType::kF32;
  bool at_boundary = false;
};

std::map<UnitClass, SlotClass> slot_classes(const std::vector<UnitPlan>& units,
                                            int num_micro_steps) {
  std::map<UnitClass, SlotClass> classes;
  for (const UnitPlan& unit : units) {
    if (!needs_slot(unit, num_micro_steps)) continue;
    SlotClass& pool = classes[unit.spec.unit_class];
    CHECK(pool.num_units == 0 ||
              (pool.dtype == unit.precision.reduce && pool.at_boundary == at_boundary(unit)),
          "{} shares gradient slots with units of another type or sync", unit.spec.name);
    ++pool.num_units;
    pool.largest = std::max(pool.largest, unit.layout.numel());
    pool.dtype = unit.precision.reduce;
    pool.at_boundary = at_boundary(unit);
  }
  return classes;
}

}  // namespace

ReductionBuffers reduction_buffers(const std::vector<UnitPlan>& units, int num_micro_steps) {
  ReductionBuffers buffers;
  // The reductions of a micro-step end under the next one's forward. The head's gradient is formed
  // with the loss.
  const auto phases_of = [&](bool boundary, Phases within) {
    return num_micro_steps > 1 && !boundary ? kForwardToBackward : within;
  };
  for (const auto& [unit_class, pool] : slot_classes(units, num_micro_steps)) {
    const bool block = unit_class == UnitClass::kBlock;
    // At the boundary a slot is drained by the compute stream itself, so one is enough.
    const int num_slots = block ? std::min(pool.at_boundary ? 1 : 2, pool.num_units) : 1;
    const Phases phases =
        phases_of(pool.at_boundary, block ? Phases(kBackward) : kLoss | kBackward);
    for (int i = 0; i < num_slots; ++i) {
      buffers.slots.push_back({unit_class,
                               {fmt::format("gradient.{}.{}", block ? "block" : "edge", i),
                                Category::kUnreducedGradients, pool.dtype, pool.largest, phases}});
    }
  }
  for (const UnitPlan& unit : units) {
    if (!needs_staging(unit, num_micro_steps)) continue;
    if (!buffers.staging) {
      buffers.staging = {"gradient.staging", Category::kCommunication, unit.precision.reduce, 0,
                         phases_of(at_boundary(unit), kLoss | kBackward)};
    }
    CHECK(buffers.staging->dtype == unit.precision.reduce, "{} is staged in another type",
          unit.spec.name);
    buffers.staging->numel = std::max(buffers.staging->numel, unit.layout.slice_numel());
  }
  return buffers;
}

// At the boundary the accumulator is reduced, which then has the type of reductions.
Traffic gradient_traffic(const std::vector<UnitPlan>& units, int num_micro_steps) {
  Traffic traffic;
  for (const UnitPlan& unit : units) {
    const Collective collective =
        unit.placement.optimizer_sharded() ? Collective::kReduceScatter : Collective::kAllReduce;
    traffic.add("gradients", collective, unit.precision.reduce, unit.layout.numel(),
                unit.layout.num_slices(), at_boundary(unit) ? 1 : num_micro_steps);
  }
  return traffic;
}

GradientReduction::GradientReduction(const Rank& rank, const std::vector<UnitState>& units,
                                     int num_micro_steps)
    : rank_(&rank),
      units_(&units),
      num_micro_steps_(num_micro_steps),
      open_slot_(units.size(), kClosed),
      reduced_(rank.make_event()) {
  for (const UnitState& unit : units) {
    CHECK(same_type(unit.plan()) || !at_boundary(unit.plan()),
          "gradients accumulated in {} can't be reduced in {} at the boundary",
          name_of(unit.precision().accumulate), name_of(unit.precision().reduce));
    written_.push_back(rank.make_event());
    communicators_.push_back(&rank.groups->get(unit.placement().slices, Purpose::kReduce));
  }
  const ReductionBuffers buffers = reduction_buffers(plans_of(units), num_micro_steps);
  for (const ReductionBuffers::Slot& slot : buffers.slots) {
    slots_.push_back({slot.unit_class, rank.memory->acquire(slot.buffer), -1, -1, false,
                      rank.make_event(), rank.make_event()});
  }
  if (buffers.staging) staging_ = rank.memory->acquire(*buffers.staging);
}

bool GradientReduction::into_accumulator(const UnitState& unit) const {
  return first() && !unit.placement().gradients_sharded() && same_type(unit.plan());
}

void GradientReduction::begin_micro_step(int micro_step) {
  for (std::size_t unit = 0; unit < open_slot_.size(); ++unit) {
    CHECK(open_slot_[unit] == kClosed, "the gradient of {} was left open", (*units_)[unit].name());
  }
  micro_step_ = micro_step;
}

GradientReduction::Slot& GradientReduction::slot_for(int unit) {
  const UnitClass unit_class = (*units_)[unit].spec().unit_class;
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].unit_class == unit_class) candidates.push_back(i);
  }
  const std::size_t turn =
      unit_class == UnitClass::kBlock ? next_block_slot_++ % candidates.size() : 0;
  Slot& slot = slots_[candidates[turn]];
  CHECK(!slot.open, "the gradient slot for {} is still open", (*units_)[unit].name());
  return slot;
}

std::vector<Tensor> GradientReduction::open(int unit) {
  const UnitState& state = (*units_)[unit];
  if (open_slot_[unit] == kAccumulator) return state.layout().views(state.gradients());
  if (open_slot_[unit] == kClosed) {
    if (into_accumulator(state)) {
      open_slot_[unit] = kAccumulator;
      return state.layout().views(state.gradients());
    }
    Slot& slot = slot_for(unit);
    rank_->compute().wait(*slot.free);
    if (slot.unit != unit || slot.life != slot.buffer.life()) {
      zero_padding(state, slot.buffer.tensor().part(0, state.layout().numel()));
    }
    slot.unit = unit;
    slot.life = slot.buffer.life();
    slot.open = true;
    open_slot_[unit] = static_cast<int>(&slot - slots_.data());
  }
  const Slot& slot = slots_[open_slot_[unit]];
  return state.layout().views(slot.buffer.tensor().part(0, state.layout().numel()));
}

// Another unit's gradient may have stood where this one has padding.
void GradientReduction::zero_padding(const UnitState& unit, const Tensor& full) {
  std::int64_t end = 0;
  const auto zero_until = [&](std::int64_t begin) {
    if (begin > end) kernels::fill_zero(rank_->compute(), full.part(end, begin - end));
  };
  for (std::size_t i = 0; i < unit.spec().parameters.size(); ++i) {
    zero_until(unit.layout().offset(static_cast<int>(i)));
    end = unit.layout().offset(static_cast<int>(i)) + unit.spec().parameters[i].numel();
  }
  zero_until(full.numel);
}

void GradientReduction::close(int unit) {
  const UnitState& state = (*units_)[unit];
  CHECK(open_slot_[unit] != kClosed, "close of {} without an open", state.name());
  const int index = open_slot_[unit];
  open_slot_[unit] = kClosed;
  const Tensor full = index == kAccumulator
                          ? state.gradients()
                          : slots_[index].buffer.tensor().part(0, state.layout().numel());
  if (inspect) inspect(unit, full);

  if (index != kAccumulator) {
    Slot& slot = slots_[index];
    slot.open = false;
    if (state.placement().gradients_sharded()) return reduce_sharded(unit, slot);
    if (!at_boundary(state.plan())) {
      rank_->compute().record(*slot.written);
      rank_->reduce().wait(*slot.written);
      reduce_in_place(unit, full);
      for (const int slice_index : state.updated_slices()) {
        accumulate(rank_->reduce(), state.layout().slice(full, slice_index),
                   state.gradient(slice_index));
      }
      rank_->reduce().record(*slot.free);
      return;
    }
    kernels::add(rank_->compute(), full, state.gradients());
  }
  if (!at_boundary(state.plan()) || last()) {
    rank_->compute().record(*written_[unit]);
    rank_->reduce().wait(*written_[unit]);
    reduce_in_place(unit, state.gradients());
  }
}

void GradientReduction::reduce_sharded(int unit, Slot& slot) {
  const UnitState& state = (*units_)[unit];
  Stream& stream = rank_->reduce();
  const Tensor full = slot.buffer.tensor().part(0, state.layout().numel());
  rank_->compute().record(*slot.written);
  stream.wait(*slot.written);
  if (first() && same_type(state.plan())) {
    communicators_[unit]->reduce_scatter(stream, state.name(), full, state.gradients());
  } else {
    const Tensor sum = staging_.tensor().part(0, state.layout().slice_numel());
    communicators_[unit]->reduce_scatter(stream, state.name(), full, sum);
    accumulate(stream, sum, state.gradients());
  }
  stream.record(*slot.free);
}

// The first micro-step's gradient is written, the others' are added.
void GradientReduction::accumulate(Stream& stream, const Tensor& gradient,
                                   const Tensor& accumulator) const {
  if (first()) {
    kernels::cast(stream, gradient, accumulator);
  } else {
    kernels::add(stream, gradient, accumulator);
  }
}

// Stage 0 needs every slice of the sum, the others their own.
void GradientReduction::reduce_in_place(int unit, const Tensor& full) {
  const UnitState& state = (*units_)[unit];
  Communicator& communicator = *communicators_[unit];
  if (state.placement().optimizer_sharded()) {
    communicator.reduce_scatter(rank_->reduce(), state.name(), full,
                                state.layout().slice(full, state.own_slice()));
  } else {
    communicator.all_reduce(rank_->reduce(), state.name(), full);
  }
}

void GradientReduction::finish() {
  rank_->reduce().record(*reduced_);
  rank_->compute().wait(*reduced_);
}

}  // namespace sherd::sharding
