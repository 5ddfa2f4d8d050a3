#include "optim/outer_update.h"

#include <algorithm>

#include "kernels/block_codec.h"
#include "kernels/outer_step.h"
#include "kernels/pointwise.h"
#include "optim/slices.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

namespace sherd::optim {
namespace {

constexpr const char* kLabel = "local updates";
constexpr const char* kGlobalKind = "param";

const sharding::AxisSet& replicas_axes() {
  static const sharding::AxisSet axes{std::string(sharding::kReplicateAxis)};
  return axes;
}

BufferSpec slice_buffer(const sharding::UnitPlan& unit, const char* what) {
  return {unit.spec.name + "." + what, Category::kOptimizer, DType::kF32,
          unit.layout.slice_numel()};
}

struct InFlight {
  BufferSpec changes;
  std::optional<BufferSpec> received;  // with several replicas
  std::optional<BufferSpec> sent;      // if it isn't the changes themselves
};

bool is_coded(const LocalUpdates& options) {
  return options.quantize != Quantize::kNone;
}
kernels::BlockFormat format_of(const LocalUpdates& options) {
  switch (options.quantize) {
    case Quantize::kNone:
      return kernels::BlockFormat::kF32;
    case Quantize::kInt8:
      return kernels::BlockFormat::kInt8;
    case Quantize::kInt4:
      return kernels::BlockFormat::kInt4;
  }
  SHERD_CHECK(false, "unknown quantize");
  __builtin_unreachable();
}

// Bytes of one replica's part of a slice on the link. Parts are blocks of 64 elements, as a slice is.
std::int64_t part_bytes(const LocalUpdates& options, std::int64_t slice_numel) {
  const std::int64_t bytes =
      kernels::coded_bytes(format_of(options), slice_numel / options.num_replicas);
  return (bytes + 3) / 4 * 4;
}

// Without a delay an exchange begins and ends within the update.
InFlight in_flight_buffers(const LocalUpdates& options,
                           const std::vector<sharding::UnitPlan>& units,
                           const std::vector<int>& fragments) {
  std::vector<std::int64_t> of_fragment(static_cast<std::size_t>(options.num_fragments));
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (fragments[i] < 0) continue;
    const std::int64_t numel = units[i].layout.slice_numel();
    of_fragment[static_cast<std::size_t>(fragments[i])] += numel;
    largest = std::max(largest, numel);
  }
  const bool delays = options.fragment_sync_delay > 0;
  const Phases phases = delays ? kAlways : Phases(kUpdate);
  InFlight buffers{{"local_updates.changes", Category::kCommunication, DType::kF32,
                    delays ? std::ranges::max(of_fragment) : largest, phases},
                   {},
                   {}};
  if (options.num_replicas > 1) {
    const std::int64_t bytes = options.num_replicas * part_bytes(options, largest);
    buffers.received = {"local_updates.received", Category::kCommunication, DType::kU8, bytes,
                        phases};
    if (is_coded(options)) {
      buffers.sent = {"local_updates.sent", Category::kCommunication, DType::kU8, bytes, phases};
    }
  }
  return buffers;
}

// Whether ranks of a ZeRO group hold all parameters in FP32, of which each has changed its slice.
bool is_whole(const sharding::UnitPlan& unit) {
  return !unit.placement.optimizer_sharded() && unit.num_parts > 1;
}

}  // namespace

std::vector<BufferSpec> OuterUpdate::buffers(const LocalUpdates& options,
                                             const sharding::ShardingPlan& plan,
                                             const std::vector<int>& fragments) {
  std::vector<BufferSpec> buffers;
  if (!options.active()) return buffers;
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.trains()) continue;
    buffers.push_back(slice_buffer(unit, "global"));
    if (options.outer_momentum > 0.0) buffers.push_back(slice_buffer(unit, kOuterMomentumKind));
  }
  const InFlight in_flight = in_flight_buffers(options, plan.units, fragments);
  if (in_flight.changes.numel == 0) return buffers;
  buffers.push_back(in_flight.changes);
  for (const auto* link : {&in_flight.sent, &in_flight.received}) {
    if (*link) buffers.push_back(**link);
  }
  return buffers;
}

sharding::Traffic OuterUpdate::traffic(const LocalUpdates& options,
                                       const sharding::ShardingPlan& plan,
                                       const std::vector<int>& fragments, int fragment) {
  sharding::Traffic traffic;
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const sharding::UnitPlan& unit = plan.units[i];
    if (fragments[i] != fragment) continue;
    if (options.num_replicas > 1) {
      const sharding::Callers callers = sharding::group_along(plan.mesh, replicas_axes());
      for (const auto collective :
           {sharding::Collective::kAllToAll, sharding::Collective::kAllGather}) {
        traffic.add(kLabel, collective, DType::kU8,
                    options.num_replicas * part_bytes(options, unit.layout.slice_numel()), callers);
      }
    }
    if (is_whole(unit)) {
      traffic.add("global weights", sharding::Collective::kAllGather, DType::kF32,
                  unit.layout.numel(), unit.group());
    }
  }
  return traffic;
}

struct OuterUpdate::Unit {
  std::vector<UpdatedSlice> own;  // this rank's slice, or none
  Buffer global, momentum;
  std::int64_t first_change = 0;            // in the buffer of the changes
  sharding::Communicator* group = nullptr;  // of ranks that hold all parameters
};

struct OuterUpdate::State {
  State(const LocalUpdates& options, const sharding::Rank& rank, const InFlight& buffers)
      : changed(rank.make_event()),
        done(sharding::counted(rank.make_event(), sharding::wait_kind(sharding::kReplicateAxis))),
        written(rank.make_event()),
        gathered(sharding::counted(rank.make_event(),
                                   sharding::wait_kind(rank.mesh, sharding::zero_axes()))),
        stream(rank.make_stream(StreamPurpose::kReduce, kLabel)) {
    if (buffers.changes.numel > 0) {
      changes = rank.acquire(buffers.changes);
      sent = rank.acquire(buffers.sent);
      received = rank.acquire(buffers.received);
    }
    if (options.num_replicas == 1) return;
    replicas = rank.groups->among(rank.mesh.group(rank.rank, replicas_axes()), kLabel,
                                  sharding::Purpose::kGather);
  }

  std::vector<Unit> units;
  Buffer changes, sent, received;
  std::unique_ptr<sharding::Communicator> replicas;  // null: one
  std::unique_ptr<Event> changed, done, written, gathered;
  std::unique_ptr<Stream> stream;  // destroyed first: its work uses the others
};

OuterUpdate::OuterUpdate(const LocalUpdates& options, const OptimizerOptions& optimizer,
                         const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
                         std::vector<int> fragments)
    : options_(options),
      rank_(&rank),
      units_(&units),
      fragments_(std::move(fragments)),
      state_(std::make_unique<State>(
          options, rank, in_flight_buffers(options, sharding::plans_of(units), fragments_))) {
  const auto all = updated_slices(units, optimizer);
  std::vector<std::int64_t> before(static_cast<std::size_t>(options.num_fragments));
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit& unit = state_->units.emplace_back();
    if (fragments_[i] < 0) continue;
    for (const UpdatedSlice& slice : all[i]) {
      if (slice.slice_index == units[i].own_slice()) unit.own.push_back(slice);
    }
    unit.global = rank.acquire(slice_buffer(units[i].plan(), "global"));
    if (options.outer_momentum > 0.0) {
      unit.momentum = rank.acquire(slice_buffer(units[i].plan(), kOuterMomentumKind));
    }
    std::int64_t& first = before[static_cast<std::size_t>(fragments_[i])];
    if (options.fragment_sync_delay > 0) unit.first_change = first;
    first += units[i].layout().slice_numel();
    if (is_whole(units[i].plan())) {
      unit.group = &rank.groups->get(units[i].placement().group, sharding::Purpose::kReduce);
    }
  }
  begin();
}

OuterUpdate::~OuterUpdate() = default;

Tensor OuterUpdate::parameters(std::size_t unit) const {
  const sharding::UnitState& state = (*units_)[unit];
  return state.fp32_slice(state.own_slice());
}

Tensor OuterUpdate::change_of(std::size_t unit) const {
  return state_->changes.tensor().part(state_->units[unit].first_change,
                                       (*units_)[unit].layout().slice_numel());
}

void OuterUpdate::begin() {
  Stream& stream = rank_->compute();
  for (std::size_t i = 0; i < state_->units.size(); ++i) {
    const Unit& unit = state_->units[i];
    if (fragments_[i] < 0) continue;
    kernels::cast(stream, parameters(i), unit.global);
    if (unit.momentum) kernels::fill_zero(stream, unit.momentum);
  }
}

// Without a delay, units take turns with one buffer for their changes.
void OuterUpdate::send(int fragment) {
  Stream& compute = rank_->compute();
  Stream& own = *state_->stream;
  for (std::size_t i = 0; i < state_->units.size(); ++i) {
    if (fragments_[i] != fragment) continue;
    if (options_.fragment_sync_delay == 0) compute.wait(*state_->done);
    const Tensor change = change_of(i);
    kernels::outer_change(compute, state_->units[i].global, parameters(i), change);
    compute.record(*state_->changed);
    own.wait(*state_->changed);
    add_up(i, change);
    const Unit& unit = state_->units[i];
    kernels::outer_step(own, {.sum = change,
                              .replicas = options_.num_replicas,
                              .rate = static_cast<float>(options_.outer_lr),
                              .momentum = static_cast<float>(options_.outer_momentum),
                              .old = unit.global,
                              .velocity = unit.momentum ? unit.momentum.tensor() : Tensor{}});
    own.record(*state_->done);
  }
}

// Each replica adds a part of the slice, in the order of the replicas, and all decode the same sums.
void OuterUpdate::add_up(std::size_t unit, const Tensor& change) {
  if (!state_->replicas) return;
  Stream& own = *state_->stream;
  const std::string& name = (*units_)[unit].name();
  const kernels::BlockFormat format = format_of(options_);
  const std::int64_t count = options_.num_replicas, numel = change.numel / count;
  const std::int64_t stride = part_bytes(options_, change.numel);
  const std::int64_t bytes = kernels::coded_bytes(format, numel);
  const Tensor received = state_->received.tensor().part(0, count * stride);
  const bool coded = is_coded(options_);
  const Tensor sent = coded ? state_->sent.tensor().part(0, count * stride)
                            : Tensor{change.data, DType::kU8, change.bytes()};
  const auto part_of = [&](std::int64_t i) { return change.part(i * numel, numel); };
  const auto bytes_of = [&](std::int64_t i) { return sent.part(i * stride, bytes); };
  const auto encode = [&](std::int64_t i) {
    if (coded) kernels::encode_blocks(own, format, part_of(i), bytes_of(i));
  };
  for (std::int64_t i = 0; i < count; ++i) encode(i);
  state_->replicas->all_to_all(own, name, sent, received);
  const std::int64_t mine = state_->replicas->rank();
  kernels::sum_blocks(own, format, {received.part(0, bytes), stride, options_.num_replicas},
                      part_of(mine));
  encode(mine);
  state_->replicas->all_gather(own, name, sent);
  for (std::int64_t i = 0; coded && i < count; ++i) {
    kernels::sum_blocks(own, format, {bytes_of(i), stride, 1}, part_of(i));
  }
}

void OuterUpdate::settle() {
  rank_->compute().wait(*state_->done);
}

// Weight 1 copies.
void OuterUpdate::apply(int fragment) {
  settle();
  const auto weight = static_cast<float>(1.0 - options_.fragment_update_alpha);
  for (std::size_t i = 0; i < state_->units.size(); ++i) {
    if (fragments_[i] != fragment) continue;
    if (weight > 0.0f) {
      kernels::move_towards(rank_->compute(), state_->units[i].global, weight, parameters(i));
    }
    complete(i);
  }
}

void OuterUpdate::exchange(int unit) {
  const auto i = static_cast<std::size_t>(unit);
  if (fragments_[i] < 0) return;
  kernels::exchange(rank_->compute(), parameters(i), state_->units[i].global);
  complete(i);
}

// At stage 0, the other slices.
void OuterUpdate::complete(std::size_t unit) {
  sharding::Communicator* const group = state_->units[unit].group;
  if (group == nullptr) return;
  const sharding::UnitState& state = (*units_)[unit];
  const Tensor full{state.fp32_slice(0).data, DType::kF32, state.layout().numel()};
  rank_->compute().record(*state_->written);
  rank_->reduce().wait(*state_->written);
  group->all_gather(rank_->reduce(), state.name(), full);
  rank_->reduce().record(*state_->gathered);
  rank_->compute().wait(*state_->gathered);
}

std::vector<MomentPiece> OuterUpdate::pieces() const {
  std::vector<MomentPiece> pieces;
  for (const Unit& unit : state_->units) {
    for (const UpdatedSlice& slice : unit.own) {
      add_moment_pieces(slice, kGlobalKind, unit.global, pieces);
      if (unit.momentum) add_moment_pieces(slice, kOuterMomentumKind, unit.momentum, pieces);
    }
  }
  return pieces;
}

std::chrono::nanoseconds OuterUpdate::cpu_time() const {
  return state_->stream->cpu_time();
}

}  // namespace sherd::optim
