#include "optim/host_update.h"

#include <algorithm>

#include "core/ledger.h"
#include "core/offload_home.h"

namespace sherd::optim {
namespace {

constexpr std::int64_t kHostSlots = 4;

// Of a slot: the longest gradient and the longest rounded weights of a block.
struct SlotRoom {
  std::int64_t gradient = 0, rounded = 0, blocks = 0;
  std::int64_t bytes() const { return gradient + rounded; }
};

bool is_updated(const sharding::UnitPlan& unit) {
  return unit.trains() && unit.updated_numel() > 0 && HostUpdate::has(unit);
}

// Without a resident copy, gathers round.
std::int64_t rounded_bytes(const sharding::UnitPlan& unit) {
  const bool is_resident = !unit.placement.parameters_sharded() || unit.divides_parts();
  return is_resident ? static_cast<std::int64_t>(size_of(unit.precision.parameters)) : 0;
}

SlotRoom room_of(const std::vector<sharding::UnitPlan>& units, std::int64_t block) {
  SlotRoom room;
  for (const sharding::UnitPlan& unit : units) {
    if (!is_updated(unit)) continue;
    const std::int64_t most = std::min(block, unit.updated_numel());
    const auto gradient = static_cast<std::int64_t>(size_of(unit.precision.accumulate));
    room.gradient = std::max(room.gradient, disk_room(most * gradient));
    room.rounded = std::max(room.rounded, disk_room(most * rounded_bytes(unit)));
    room.blocks += (unit.updated_numel() + block - 1) / block;
  }
  return room;
}

}  // namespace

std::vector<BufferSpec> HostUpdate::buffers(const std::vector<sharding::UnitPlan>& units,
                                            std::int64_t block) {
  const SlotRoom room = room_of(units, block);
  if (room.blocks == 0) return {};
  return {{"offload.ring", Category::kOptimizer, DType::kU8,
           std::min(kHostSlots, room.blocks) * room.bytes(), kAlways, Home::kHost, room.bytes()}};
}

DiskTraffic HostUpdate::traffic(const std::vector<sharding::UnitPlan>& units) {
  DiskTraffic traffic;
  for (const sharding::UnitPlan& unit : units) {
    if (!is_updated(unit)) continue;
    traffic.written +=
        unit.updated_numel() * static_cast<std::int64_t>(size_of(unit.precision.accumulate));
    traffic.read += unit.updated_numel() * rounded_bytes(unit);
  }
  return traffic;
}

HostUpdate::HostUpdate(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
                       std::int64_t block)
    : rank_(rank),
      computed_(rank.make_event()),
      down_(rank.make_stream(StreamPurpose::kCopy, "gradients to host")),
      up_(rank.make_stream(StreamPurpose::kCopy, "weights from host")),
      cores_(rank.make_stream(StreamPurpose::kCopy, "update on the host")) {
  rank.offload_home->works_on(cores_);
  const std::vector<sharding::UnitPlan> plans = sharding::plans_of(units);
  for (const sharding::UnitPlan& unit : plans) updates_.push_back(is_updated(unit));
  StreamOptions kernels;
  kernels.name = "cores";
  kernels.rank = rank.rank;
  kernels.num_threads = rank.host_threads;
  cpu_ = make_cpu_compute_stream(std::move(kernels));
  const SlotRoom room = room_of(plans, block);
  for (const BufferSpec& ring : buffers(plans, block)) {
    memory_ = rank.acquire(ring);
    auto* const first = static_cast<char*>(memory_.tensor().data);
    for (std::int64_t at = 0; at < ring.numel; at += room.bytes()) {
      slots_.push_back({first + at, first + at + room.gradient, rank.make_event(),
                        rank.make_event(), rank.make_event()});
    }
  }
}

HostUpdate::~HostUpdate() {
  for (Stream* const stream : {down_.get(), cores_.get(), up_.get()}) {
    try {
      stream->synchronize();
    } catch (...) {  // that error is on its way already
    }
  }
}

void HostUpdate::begin_step() {
  cores_->synchronize();
  rank_.compute().record(*computed_);
  for (Stream* const stream : {down_.get(), cores_.get(), up_.get()}) {
    stream->wait(*computed_);
  }
}

void HostUpdate::add(const Block& block) {
  const Slot& slot = slots_[next_++ % slots_.size()];
  const Tensor gradient{slot.gradient, block.gradient.dtype, block.gradient.numel};
  Tensor rounded;
  if (block.rounded) rounded = {slot.rounded, block.rounded.dtype, block.rounded.numel};

  down_->wait(*slot.updated);
  down_->copy(block.gradient.data, gradient.data, gradient.bytes());
  down_->record(*slot.fetched);

  cores_->wait(*slot.fetched);
  cores_->wait(*slot.sent);
  if (LedgerStream* const ledger = ledger_stream(*cores_)) {
    ledger->add_host_work(block.moves.read + gradient.bytes(),
                          block.moves.written + rounded.bytes());
  } else {
    cores_->run("update", [cpu = cpu_, update = block.update, gradient, rounded] {
      update(*cpu, gradient, rounded);
    });
  }
  cores_->record(*slot.updated);

  up_->wait(*slot.updated);
  if (rounded) up_->copy(rounded.data, block.rounded.data, rounded.bytes());
  up_->record(*slot.sent);
  rank_.offload_home->count({.read = rounded.bytes(), .written = gradient.bytes()});
}

}  // namespace sherd::optim
