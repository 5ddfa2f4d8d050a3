#include "sharding/zero/parameter_gather.h"

#include <algorithm>

#include "core/offload_home.h"
#include "kernels/nf4.h"
#include "kernels/pointwise.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

namespace sherd::sharding {
namespace {

// The parts of a split parameter's piece in each of its boxes, and the number of box elements
// before them.
template <class Visit>
void for_each_box(const ParameterCut& cut, const Piece& piece, const Visit& visit) {
  std::int64_t begin = 0;  // of the box
  for (const Box& box : cut.boxes()) {
    const std::int64_t first = std::max(piece.first_element, begin);
    const std::int64_t end = std::min(piece.first_element + piece.count, begin + box.numel());
    if (first < end) {
      const std::int64_t position = piece.position + first - piece.first_element;
      visit(Piece{piece.parameter, first, end - first, position}, box, first - begin);
    }
    begin += box.numel();
  }
}

}  // namespace

Traffic parameter_traffic(const std::vector<UnitPlan>& units, const GatherOptions& options,
                          const std::vector<int>& uses, int num_micro_steps) {
  const std::vector<std::int64_t> gathers = count_gathers(units, options, uses, num_micro_steps);
  Traffic traffic;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPlan& unit = units[i];
    if (unit.has_frozen() && unit.placement.parameters_sharded()) {
      traffic.add("frozen parameters", Collective::kAllGather, unit.precision.parameters,
                  unit.frozen_layout.numel(), unit.group(), gathers[i]);
    }
    if (unit.has_quantised() && unit.placement.parameters_sharded()) {
      traffic.add("quantised parameters", Collective::kAllGather, DType::kU8,
                  unit.num_parts * unit.quantised_slice_bytes(), unit.group(), gathers[i]);
    }
    if (!unit.placement.optimizer_sharded() || !unit.trains()) continue;
    if (unit.has_owners() && !unit.placement.parameters_sharded()) continue;  // pull_traffic
    if (unit.divides_parts()) {
      const bool coded = unit.gathers_blocks();
      traffic.add(
          "parameters of replicas", Collective::kAllGather,
          coded ? DType::kU8 : unit.precision.parameters,
          coded ? unit.slices_per_part() * gather_layout(unit).piece_bytes() : unit.part_numel(),
          unit.replicas());
    }
    // Where parameters are resident, every update is published once.
    const std::int64_t calls = unit.placement.parameters_sharded() ? gathers[i] : 1;
    if (unit.gathers_blocks()) {
      traffic.add("parameters", Collective::kAllGather, DType::kU8, gather_layout(unit).bytes(),
                  unit.group(), calls);
      continue;
    }
    traffic.add("parameters", Collective::kAllGather, unit.precision.parameters,
                unit.layout.numel(), unit.group(), calls);
  }
  return traffic;
}

ParameterGather::ParameterGather(const Rank& rank, const std::vector<UnitState>& units,
                                 const GatherOptions& options)
    : rank_(&rank),
      units_(&units),
      schedule_(plans_of(units), options),
      coded_(rank, units),
      owners_(rank, units),
      began_(rank.make_event()) {
  const std::size_t waits = wait_kind(rank.mesh, zero_axes());
  for (std::size_t i = 0; i < units.size(); ++i) {
    updated_.push_back(rank.make_event());
    updated_elsewhere_.push_back(false);
    published_.push_back(counted(rank.make_event(), waits));
    told_.push_back(counted(rank.make_event(), wait_kind(kReplicateAxis)));
    const Placement& placement = units[i].placement();
    communicators_.push_back(&rank.groups->get(placement.group, Purpose::kGather));
    replicas_.push_back(units[i].plan().divides_parts()
                            ? &rank.groups->get(replica_axes(placement), Purpose::kGather)
                            : nullptr);
  }
  for (const GatherSlot& slot : gather_slots(plans_of(units), options)) {
    Slot& made = slots_.emplace_back();
    made.buffer = rank.acquire(slot.buffer);
    made.frozen = rank.acquire(slot.frozen);
    made.quantised = rank.acquire(slot.quantised);
    made.ready = counted(rank.make_event(), waits);
    made.free = rank.make_event();
  }
  quantised_ = rank.acquire(quantised_gather_buffer(plans_of(units)));
  if (!rank.offload_home || rank.separate_memory()) return;
  StreamOptions at_once;
  at_once.name = "read";
  at_once.rank = rank.rank;
  at_once_ = make_cpu_compute_stream(std::move(at_once));
}

void ParameterGather::plan(std::vector<int> uses) {
  schedule_.plan(std::move(uses));
  if (slots_.empty()) return;
  // What the compute stream did before may have used the slots' memory for something else.
  rank_->compute().record(*began_);
  rank_->gather().wait(*began_);
}

void ParameterGather::abandon() {
  schedule_.abandon();
}

std::vector<Tensor> ParameterGather::get(int unit) {
  forget_lost_slots();
  schedule_.get(unit);
  const UnitState& state = (*units_)[unit];
  const UnitPlan& plan = state.plan();
  // First, so that this wait isn't taken for one of communication.
  if (updated_elsewhere_[unit]) rank_->compute().wait(*updated_[unit]);
  if (replicas_[unit]) rank_->compute().wait(*told_[unit]);
  const auto part = [](const Buffer& buffer, const FlatLayout& layout) {
    return layout.numel() > 0 ? buffer.tensor().part(0, layout.numel()) : Tensor{};
  };
  Tensor quantised;
  const Slot* slot = nullptr;
  if (plan.needs_slot()) {
    prefetch();
    slot = &slots_[schedule_.slot_of(unit)];
    rank_->compute().wait(*slot->ready);
    quantised = part(slot->quantised, plan.quantised_layout);
  }
  if (!sharded(unit)) {
    rank_->compute().wait(*published_[unit]);
    return plan.views(plan.trains() ? state.resident_parameters() : Tensor{},
                      plan.has_frozen() ? state.frozen() : Tensor{}, quantised);
  }
  return plan.views(part(slot->buffer, plan.layout), part(slot->frozen, plan.frozen_layout),
                    quantised);
}

void ParameterGather::release(int unit) {
  const int slot = schedule_.release(unit);
  if (slot >= 0) rank_->compute().record(*slots_[slot].free);
  prefetch();
}

// A slot's content is lost if its memory was used for something else meanwhile.
void ParameterGather::forget_lost_slots() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].life != slots_[i].life_now()) schedule_.forget_slot(static_cast<int>(i));
  }
}

void ParameterGather::prefetch() {
  for (const auto& [slot, unit] : schedule_.prefetch()) gather_into(slots_[slot], unit);
}

// What is on disk is read by the stream, on its own thread, and cast there at once.
void ParameterGather::cast_into(Stream& stream, const Tensor& from, const Tensor& to) {
  const auto read = [this, from, to, &stream](Stream& casts) {
    rank_->each_part(stream, from, false, [&](const Tensor& part, std::int64_t first) {
      kernels::cast(casts, part, to.part(first, part.numel));
    });
  };
  if (!rank_->offload_home || !rank_->offload_home->has(from.data) || rank_->separate_memory()) {
    return read(stream);
  }
  stream.run("read", [this, read] { read(*at_once_); });
}

void ParameterGather::gather_into(Slot& slot, int unit) {
  const UnitState& state = (*units_)[unit];
  Stream& stream = rank_->gather();
  stream.wait(*slot.free);
  stream.wait(*updated_[unit]);
  if (sharded(unit) && state.trains()) {
    const Tensor full = slot.buffer.tensor().part(0, state.layout().numel());
    const bool has_part = replicas_[unit] != nullptr || state.plan().is_workers();
    if (state.plan().gathers_blocks()) {
      if (!has_part) coded_.encode(stream, unit, state.fp32_slice(state.own_slice()));
      coded_.gather(stream, *communicators_[unit], unit, full);
    } else {
      cast_into(stream, has_part ? state.resident_part() : state.fp32_slice(state.own_slice()),
                state.part_of(full));
      communicators_[unit]->all_gather(stream, state.name(), full);
    }
  }
  if (sharded(unit) && state.plan().has_frozen()) gather_frozen_into(slot, unit);
  if (state.plan().has_quantised()) decode_into(slot, unit);
  stream.record(*slot.ready);
  slot.life = slot.life_now();
}

void ParameterGather::gather_frozen_into(const Slot& slot, int unit) {
  const UnitState& state = (*units_)[unit];
  const FlatLayout& layout = state.plan().frozen_layout;
  const Tensor full = slot.frozen.tensor().part(0, layout.numel());
  kernels::cast(rank_->gather(), state.frozen(), layout.slice(full, state.own_part()));
  communicators_[unit]->all_gather(rank_->gather(), state.name() + ".frozen", full);
}

void ParameterGather::decode_into(const Slot& slot, int unit) {
  const UnitState& state = (*units_)[unit];
  const UnitPlan& plan = state.plan();
  const std::int64_t slice_bytes = plan.quantised_slice_bytes();
  const FlatLayout& layout = plan.quantised_layout;
  Stream& stream = rank_->gather();
  Tensor bytes = state.quantised();
  if (sharded(unit)) {
    bytes = quantised_.tensor().part(0, layout.num_slices() * slice_bytes);
    const Tensor own = bytes.part(state.own_part() * slice_bytes, slice_bytes);
    stream.copy(state.quantised().data, own.data, own.bytes());
    communicators_[unit]->all_gather(stream, state.name() + ".quantised", bytes);
  }
  for (int slice = 0; slice < layout.num_slices(); ++slice) {
    const Tensor out = layout.slice(slot.quantised.tensor().part(0, layout.numel()), slice);
    for (const Piece& piece : layout.pieces(slice)) {
      const auto decode = [&](const Piece& of, kernels::Nf4Part part) {
        const auto [codes, scale_codes] =
            quantised_piece(bytes.part(slice * slice_bytes, slice_bytes), of);
        part.codes = codes;
        part.scale_codes = scale_codes;
        part.ranges = state.ranges(of.parameter);
        kernels::nf4_decode(stream, part, out.part(of.position, of.count));
      };
      const auto& cut = plan.quantised[static_cast<std::size_t>(piece.parameter)].cut;
      if (!cut) {
        decode(piece, {.first_block = piece.first_element / kernels::kNf4Block});
        continue;
      }
      for_each_box(*cut, piece, [&](const Piece& of, const Box& box, std::int64_t before) {
        constexpr std::int64_t kBlock = kernels::kNf4Block;
        if (box.num_columns == cut->columns()) {  // whole rows follow one another
          decode(of, {.first_block = (box.first_row * cut->columns() + before) / kBlock});
          return;
        }
        decode(of, {.first_block = (box.first_row * cut->columns() + box.first_column) / kBlock,
                    .row_blocks = box.num_columns / kBlock,
                    .all_row_blocks = cut->columns() / kBlock,
                    .blocks_before = before / kBlock});
      });
    }
  }
}

void ParameterGather::publish(int unit, bool rounded, Stream* updating) {
  const UnitState& state = (*units_)[unit];
  if (sharded(unit)) schedule_.forget_unit(unit);
  if (state.trains() && state.plan().gathers_blocks()) return publish_blocks(unit);
  const bool owns = state.plan().is_owners();
  for (const int slice_index : state.updated_slices()) {
    const Tensor resident = state.rounded_slice(slice_index);
    if (!resident || rounded) continue;
    cast_into(rank_->compute(), state.fp32_slice(slice_index), resident);
  }
  if (state.plan().has_owners()) {
    const Tensor rounded = owns ? state.rounded_slice(state.own_slice()) : Tensor();
    return pull(unit, !owns     ? state.resident_parameters()
                      : rounded ? rounded
                                : state.fp32_slice(state.own_slice()));
  }
  SHERD_CHECK(updating == nullptr || rounded, "{} is updated elsewhere, but not rounded there",
              state.name());
  updated_elsewhere_[unit] = updating != nullptr;
  updated_[unit]->counts_as = updating != nullptr ? kWaitsForState : 0;
  (updating != nullptr ? *updating : rank_->compute()).record(*updated_[unit]);
  if (!state.placement().optimizer_sharded() || !state.trains()) return;
  if (sharded(unit) && !replicas_[unit]) return;
  Stream& stream = rank_->gather();
  stream.wait(*updated_[unit]);
  if (replicas_[unit]) {
    replicas_[unit]->all_gather(stream, state.name(), state.resident_part());
    stream.record(*told_[unit]);
  }
  if (!sharded(unit)) {
    communicators_[unit]->all_gather(stream, state.name(), state.resident_parameters());
  }
  stream.record(*published_[unit]);
}

// A unit without trained parameters is nobody's.
void ParameterGather::pull(int unit, const Tensor& own) {
  rank_->compute().record(*updated_[unit]);
  if (!(*units_)[unit].trains()) return;
  Stream& stream = rank_->gather();
  stream.wait(*updated_[unit]);
  owners_.pull(stream, unit, own);
  stream.record(*published_[unit]);
}

void ParameterGather::publish_kept(int unit, bool refresh) {
  const UnitState& state = (*units_)[unit];
  if (sharded(unit)) schedule_.forget_unit(unit);
  if (!state.plan().is_owners() || !state.trains()) return pull(unit, state.resident_parameters());
  if (refresh) {
    kernels::cast(rank_->compute(), state.fp32_slice(state.own_slice()), state.published());
  }
  pull(unit, state.published());
}

void ParameterGather::settle() {
  for (std::size_t unit = 0; unit < units_->size(); ++unit) {
    const Event& sent = *published_[unit];
    if ((*units_)[unit].trains()) rank_->compute().wait(sent);
  }
}

void ParameterGather::publish_blocks(int unit) {
  const UnitState& state = (*units_)[unit];
  if (!state.placement().optimizer_sharded()) {
    for (const int slice : state.updated_slices()) {
      coded_.round(rank_->compute(), unit, slice, state.fp32_slice(slice),
                   state.rounded_slice(slice));
    }
  }
  rank_->compute().record(*updated_[unit]);
  if (!state.placement().optimizer_sharded() || (sharded(unit) && !replicas_[unit])) return;
  Stream& stream = rank_->gather();
  stream.wait(*updated_[unit]);
  coded_.encode(stream, unit, state.fp32_slice(state.own_slice()));
  if (replicas_[unit]) {
    coded_.exchange(stream, *replicas_[unit], unit);
    stream.record(*told_[unit]);
  }
  if (!sharded(unit)) {
    coded_.gather(stream, *communicators_[unit], unit, state.resident_parameters());
  }
  stream.record(*published_[unit]);
}

}  // namespace sherd::sharding
