#include "sharding/zero/gradient_reduction.h"

#include <algorithm>

#include "kernels/pointwise.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"
#include "sharding/zero/reduction_rules.h"

namespace sherd::sharding {
namespace {

constexpr int kClosed = -1;
constexpr int kAccumulator = -2;

}  // namespace

GradientReduction::GradientReduction(const Rank& rank, const std::vector<UnitState>& units,
                                     int num_micro_steps, ReplicaSum* compressed)
    : rank_(&rank),
      units_(&units),
      num_micro_steps_(num_micro_steps),
      coded_(rank, units, num_micro_steps),
      plain_sum_(rank, units),
      coded_sum_(rank, units, coded_),
      compressed_sum_(compressed),
      owners_(rank, units, num_micro_steps),
      reduced_(rank.make_event()),
      zero_waits_(wait_kind(rank.mesh, zero_axes())),
      marks_(std::make_unique<Marks>()) {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].plan().ends_apart) apart_ = static_cast<int>(unit);
    set_up(static_cast<int>(unit), rank);
    const std::optional<UnitPlan::Tie>& tie = units[unit].plan().tie;
    ends_.push_back(tie && units[unit].trains()
                        ? rank.groups->pair(tie->first_rank, tie->last_rank,
                                            "both ends of " + units[unit].name())
                        : nullptr);
  }
  if (apart_ >= 0) set_up(static_cast<int>(units.size()), rank);
  const ReductionBuffers buffers = reduction_buffers(plans_of(units), num_micro_steps);
  for (const ReductionBuffers::Slot& slot : buffers.slots) {
    slots_.push_back({slot.unit_class, rank.acquire(slot.buffer), -1, -1, false, rank.make_event(),
                      counted(rank.make_event(), zero_waits_)});
  }
  for (const std::optional<BufferSpec>& group : buffers.groups) {
    groups_.push_back(rank.acquire(group));
  }
  head_end_ = rank.acquire(buffers.head_end);
  groups_.push_back(rank.acquire(buffers.head_end_group));
}

GradientReduction::~GradientReduction() = default;

void GradientReduction::set_up(int at, const Rank& rank) {
  const UnitState& unit = state_at(at);
  SHERD_CHECK(same_type(unit.plan()) || !at_boundary(unit.plan()),
              "gradients accumulated in {} can't be reduced in {} at the boundary",
              name_of(unit.precision().accumulate), name_of(unit.precision().reduce));
  open_slot_.push_back(kClosed);
  links_.push_back(0);
  written_.push_back(rank.make_event());
  SHERD_CHECK(unit.plan().num_links == 1 || !at_boundary(unit.plan()),
              "{} links of {} at the boundary", unit.plan().num_links, unit.name());
  const int groups = unit.placement().batch_groups;
  const int reductions = num_reductions(unit.plan(), num_micro_steps_);
  SHERD_CHECK(groups == unit.plan().num_replicas ||
                  (unit.plan().num_replicas == 1 && !at_boundary(unit.plan()) &&
                   reductions * unit.plan().num_parts % groups == 0),
              "{} groups of a batch of {} x {} micro-batches on {} replicas", groups, reductions,
              unit.plan().num_parts, unit.plan().num_replicas);
  communicators_.push_back(&rank.groups->get(unit.placement().group, Purpose::kReduce));
  SHERD_CHECK(!unit.plan().compressed_sum || compressed_sum_ != nullptr,
              "no compressed sum of {} is given", unit.name());
  if (unit.plan().compressed_sum && unit.trains()) {
    replicas_.push_back(compressed_sum_);
  } else if (unit.plan().num_replicas == 1) {
    replicas_.push_back(nullptr);
  } else {
    replicas_.push_back(unit.plan().adds_replicas_in_blocks()
                            ? static_cast<ReplicaSum*>(&coded_sum_)
                            : &plain_sum_);
  }
}

int GradientReduction::place_of(int unit, UnitEnd end) const {
  if (end == UnitEnd::kUnit) return unit;
  SHERD_CHECK(unit == apart_, "{} has one end", (*units_)[unit].name());
  return static_cast<int>(units_->size());
}

Tensor GradientReduction::gradients_at(int at) const {
  return at == unit_at(at) ? state_at(at).gradients() : head_end_.tensor();
}

Tensor GradientReduction::own_part_at(int at) const {
  const UnitState& state = state_at(at);
  const Tensor gradients = gradients_at(at);
  return state.placement().gradients_sharded() ? gradients : state.part_of(gradients);
}

Tensor GradientReduction::own_gradient_at(int at) const {
  const UnitState& state = state_at(at);
  const std::int64_t numel = state.layout().slice_numel();
  return own_part_at(at).part(state.own_slice() % state.plan().slices_per_part() * numel, numel);
}

// Slices, or at stage 0 all of them.
Tensor GradientReduction::updated_at(int at) const {
  return state_at(at).placement().optimizer_sharded() ? own_gradient_at(at) : gradients_at(at);
}

bool GradientReduction::last(int at) const {
  return reduction(at) + 1 == num_reductions(state_at(at).plan(), num_micro_steps_);
}

bool GradientReduction::into_accumulator(int at) const {
  const UnitState& unit = state_at(at);
  return first(at) && !unit.placement().gradients_sharded() && same_type(unit.plan()) &&
         !in_groups(unit.plan());
}

void GradientReduction::begin_micro_step(int micro_step) {
  for (std::size_t at = 0; at < open_slot_.size(); ++at) {
    SHERD_CHECK(open_slot_[at] == kClosed && links_[at] == 0, "the gradient of {} was left open",
                state_at(static_cast<int>(at)).name());
  }
  micro_step_ = micro_step;
}

GradientReduction::Slot& GradientReduction::slot_for(int at) {
  const UnitClass unit_class = state_at(at).spec().unit_class;
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].unit_class == unit_class) candidates.push_back(i);
  }
  Slot& slot = slots_[candidates[turns_[unit_class]++ % candidates.size()]];
  SHERD_CHECK(!slot.open, "the gradient slot for {} is still open", state_at(at).name());
  return slot;
}

std::vector<Tensor> GradientReduction::open(int unit, UnitEnd end) {
  const int at = place_of(unit, end);
  const UnitState& state = state_at(at);
  if (!state.trains()) return state.plan().views({}, {});
  if (open_slot_[at] == kAccumulator) return state.plan().views(gradients_at(at), {});
  if (open_slot_[at] == kClosed) {
    if (into_accumulator(at)) {
      open_slot_[at] = kAccumulator;
      return state.plan().views(gradients_at(at), {});
    }
    Slot& slot = slot_for(at);
    marks_->wait(rank_->compute(), slot.marks);
    rank_->compute().wait(*slot.free);
    if (slot.unit != unit || slot.life != slot.buffer.life()) {
      zero_padding(state, slot.buffer.tensor().part(0, state.layout().numel()));
    }
    slot.unit = unit;
    slot.life = slot.buffer.life();
    slot.open = true;
    open_slot_[at] = static_cast<int>(&slot - slots_.data());
  }
  const Slot& slot = slots_[open_slot_[at]];
  std::vector<Tensor> views =
      state.plan().views(slot.buffer.tensor().part(0, state.layout().numel()), {});
  if (!adds(unit)) return views;
  const std::vector<Tensor> sums = state.plan().views(gradients_at(at), {});
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (state.plan().may_add[i]) views[i] = sums[i];
  }
  return views;
}

bool GradientReduction::adds(int unit) const {
  const UnitPlan& plan = (*units_)[unit].plan();
  return !plan.may_add.empty() && !first(unit) && at_boundary(plan) &&
         !plan.placement.gradients_sharded() && same_type(plan) && !in_groups(plan);
}

// The gradients that the backward hasn't added itself: runs of neighbouring parameters.
void GradientReduction::add_the_rest(int at, const Tensor& full) {
  const UnitState& unit = state_at(at);
  const std::vector<ParameterSpec>& parameters = unit.spec().parameters;
  const Tensor sums = gradients_at(at);
  std::int64_t begin = 0, end = 0;
  const auto add_run = [&] {
    if (end > begin) {
      kernels::add(rank_->compute(), full.part(begin, end - begin), sums.part(begin, end - begin));
    }
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (unit.plan().may_add[i]) {
      add_run();
      begin = end = 0;
      continue;
    }
    const std::int64_t offset = unit.layout().offset(static_cast<int>(i));
    if (end == 0) begin = offset;
    end = offset + parameters[i].numel();
  }
  add_run();
}

// Another unit's gradient may have been where this one has padding.
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

void GradientReduction::close(int unit, UnitEnd end) {
  const int at = place_of(unit, end);
  const UnitState& state = state_at(at);
  if (!state.trains()) return;
  if (state.plan().is_owners()) {
    if (last(at) || !at_boundary(state.plan())) add_ranks(at, {}, own_part_at(at), onto_sum(at));
    return;
  }
  SHERD_CHECK(open_slot_[at] != kClosed, "close of {} without an open", state.name());
  const int index = open_slot_[at];
  open_slot_[at] = kClosed;
  const Tensor full = index == kAccumulator
                          ? gradients_at(at)
                          : slots_[index].buffer.tensor().part(0, state.layout().numel());
  const bool added = index != kAccumulator && adds(unit);
  if (added) add_the_rest(at, full);
  if (inspect) inspect(unit, end, added ? gradients_at(at) : full);
  reduce(at, index, full, added);
  links_[at] = (links_[at] + 1) % state.plan().num_links;
}

// After `close` has been called for the slot `index`, or the accumulator.
void GradientReduction::reduce(int at, int index, const Tensor& full, bool added) {
  const UnitState& state = state_at(at);
  if (index != kAccumulator) {
    Slot& slot = slots_[index];
    slot.open = false;
    if (!at_boundary(state.plan())) return reduce_slot(at, slot);
    if (!added) kernels::add(rank_->compute(), full, gradients_at(at));
  }
  if (!at_boundary(state.plan()) || last(at)) {
    rank_->compute().record(*written_[at]);
    rank_->reduce().wait(*written_[at]);
    reduce_in_place(at);
  }
}

// Adds the ranks' gradients of one reduction, or some of them; the first rank's call is the first.
void GradientReduction::add_ranks(int at, const Tensor& full, const Tensor& sum,
                                  const Addends& addends) {
  const UnitState& state = state_at(at);
  Stream& stream = rank_->reduce();
  if (state.plan().has_owners()) {
    return owners_.push(stream, unit_at(at), full, sum, addends.onto_out);
  }
  if (!state.plan().reduces_blocks()) {
    return communicators_[at]->reduce_scatter(stream, state.name(), full, sum, addends);
  }
  if (addends.first_rank == 0) coded_.exchange(stream, *communicators_[at], unit_at(at), full);
  coded_.add(stream, unit_at(at), sum, addends);
}

// At the boundary workers push once.
Addends GradientReduction::onto_sum(int at) const {
  return {.onto_out = !first(at) && !at_boundary(state_at(at).plan())};
}

// A group of the batch is complete. The first one is the sum itself.
void GradientReduction::add_group(int at, const Tensor& group, const Tensor& sum) {
  Stream& stream = rank_->reduce();
  if (state_at(at).plan().adds_replicas_in_blocks()) coded_.round(stream, unit_at(at), group);
  if (group.data != sum.data) kernels::add(stream, group, sum);
}

// The ranks' micro-batches of this micro-step, per group of the batch; with one group, all
// together.
void GradientReduction::reduce_slot(int at, Slot& slot) {
  const UnitState& state = state_at(at);
  Stream& stream = rank_->reduce();
  const Tensor full = slot.buffer.tensor().part(0, state.layout().numel());
  const Tensor sum = state.plan().is_workers() ? Tensor() : own_part_at(at);
  rank_->compute().record(*slot.written);
  stream.wait(*slot.written);
  const int tree = state.plan().tree_of_ranks;
  if (!in_groups(state.plan())) {
    add_ranks(at, full, sum, {.onto_out = !first(at), .tree = tree});
  } else {
    const int ranks = state.plan().num_parts;
    const int group_size =
        num_reductions(state.plan(), num_micro_steps_) * ranks / state.placement().batch_groups;
    for (int rank = 0; rank < ranks;) {
      const int number = reduction(at) * ranks + rank;  // of the first micro-batch, in the step
      const int here = std::min(ranks - rank, group_size - number % group_size);
      const Tensor group = number < group_size ? sum : groups_[at].tensor();
      add_ranks(at, full, group,
                {.onto_out = number % group_size != 0,
                 .first_rank = rank,
                 .num_ranks = here,
                 .tree = tree});
      if ((number + here) % group_size == 0) add_group(at, group, sum);
      rank += here;
    }
  }
  stream.record(*slot.free);
  slot.marks = marks_->count();
  if (last(at)) finish_unit(at);
}

void GradientReduction::reduce_in_place(int at) {
  const UnitState& state = state_at(at);
  if (all_at_once(state.plan(), num_micro_steps_)) {
    return communicators_[at]->all_reduce(rank_->reduce(), state.name(), gradients_at(at),
                                          state.plan().tree_of_ranks);
  }
  add_ranks(at, gradients_at(at), own_part_at(at), {.tree = state.plan().tree_of_ranks});
  if (last(at)) finish_unit(at);
}

// This rank's part has the sum over its ZeRO group. The replicas have the rest of the batch. Stage
// 0 needs every part; the other stages need their own slice.
void GradientReduction::finish_unit(int at) {
  const UnitState& state = state_at(at);
  Stream& stream = rank_->reduce();
  if (replicas_[at]) {
    marks_->record(stream, zero_waits_);
    replicas_[at]->add(stream, unit_at(at), own_part_at(at));
    marks_->record(stream, wait_kind(kReplicateAxis));
  }
  if (!state.placement().optimizer_sharded()) {
    communicators_[at]->all_gather(stream, state.name(), gradients_at(at));
  }
}

void GradientReduction::add_both_ends(int unit) {
  ends_[unit]->all_reduce(rank_->reduce(), (*units_)[unit].name(), updated_at(unit));
}

void GradientReduction::add_head_end() {
  const int head = place_of(apart_, UnitEnd::kHead);
  kernels::add(rank_->reduce(), updated_at(head), updated_at(apart_));
}

void GradientReduction::finish() {
  const bool has_ends = std::ranges::any_of(ends_, [](const auto& end) { return end != nullptr; });
  if (has_ends) marks_->record(rank_->reduce(), zero_waits_);
  reduced_->counts_as = has_ends ? wait_kind(kPipelineAxis) : zero_waits_;
  for (std::size_t unit = 0; unit < ends_.size(); ++unit) {
    if (ends_[unit]) add_both_ends(static_cast<int>(unit));
  }
  if (apart_ >= 0) add_head_end();
  rank_->reduce().record(*reduced_);
  marks_->wait(rank_->compute(), marks_->count());
  rank_->compute().wait(*reduced_);
  marks_->forget();
  for (Slot& slot : slots_) slot.marks = 0;
}

}  // namespace sherd::sharding
