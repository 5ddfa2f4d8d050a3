#include "optim/state_ring.h"

#include <algorithm>

namespace sherd::optim {
namespace {

// One in use, one that is read, one that is written, one to spare.
constexpr std::int64_t kSlots = 4;
constexpr std::int64_t kLeastBlock = 512, kMostBlock = std::int64_t{4} << 20;

std::int64_t bytes_of(const OffloadedKind& kind, std::int64_t block) {
  return block / kind.elements * static_cast<std::int64_t>(size_of(kind.dtype));
}

std::int64_t slot_bytes(std::span<const OffloadedKind> kinds, std::int64_t block) {
  std::int64_t bytes = 0;
  for (const OffloadedKind& kind : kinds) bytes += disk_room(bytes_of(kind, block));
  return bytes;
}

std::int64_t blocks_of(const sharding::UnitPlan& unit, std::int64_t block) {
  return unit.trains() ? (unit.updated_numel() + block - 1) / block : 0;
}

std::int64_t slots_for(std::int64_t num_blocks) {
  return std::min(kSlots, num_blocks);
}

// Elements of the longest block.
std::int64_t longest_block(std::int64_t block, const std::vector<sharding::UnitPlan>& units) {
  std::int64_t most = 0;
  for (const sharding::UnitPlan& unit : units) {
    if (unit.trains()) most = std::max(most, unit.updated_numel());
  }
  return std::min(block, (most + kLeastBlock - 1) / kLeastBlock * kLeastBlock);
}

}  // namespace

std::int64_t offload_block(std::span<const OffloadedKind> kinds, std::int64_t buffer_bytes) {
  double bytes = 0.0;  // of an element
  for (const OffloadedKind& kind : kinds) {
    bytes += static_cast<double>(size_of(kind.dtype)) / static_cast<double>(kind.elements);
  }
  if (bytes == 0.0) return kMostBlock;
  const double block = static_cast<double>(buffer_bytes) / (static_cast<double>(kSlots) * bytes);
  return std::clamp(static_cast<std::int64_t>(block) / kLeastBlock * kLeastBlock, kLeastBlock,
                    kMostBlock);
}

BufferSpec StateRing::buffer(std::span<const OffloadedKind> kinds, std::int64_t block,
                             const std::vector<sharding::UnitPlan>& units) {
  std::int64_t num_blocks = 0;
  for (const sharding::UnitPlan& unit : units) num_blocks += blocks_of(unit, block);
  const std::int64_t slot = slot_bytes(kinds, longest_block(block, units));
  return {"offload.ring", Category::kOptimizer, DType::kU8, slots_for(num_blocks) * slot,
          kAlways,        Home::kDevice,        slot};
}

StateRing::StateRing(const sharding::Rank& rank, std::vector<OffloadedKind> kinds,
                     std::vector<std::vector<Tensor>> at_rest, std::int64_t block,
                     const std::vector<sharding::UnitState>& units)
    : home_(*rank.offload_home),
      kinds_(std::move(kinds)),
      at_rest_(std::move(at_rest)),
      block_(block),
      memory_(rank.acquire(buffer(kinds_, block, sharding::plans_of(units)))) {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (std::int64_t i = 0; i < blocks_of(units[unit].plan(), block); ++i) {
      order_.push_back({unit, i});
    }
  }
  const std::int64_t longest = longest_block(block, sharding::plans_of(units));
  for (const OffloadedKind& kind : kinds_) {
    offsets_.push_back(slot_bytes_);
    slot_bytes_ += disk_room(bytes_of(kind, longest));
  }
  // A block is read again only after it has been written, so no more slots than blocks.
  num_slots_ = static_cast<std::size_t>(slots_for(std::ssize(order_)));
  reads_.resize(num_slots_);
}

StateRing::~StateRing() {
  home_.drain();
}

std::vector<StateRing::Part> StateRing::parts_of(std::size_t position) const {
  const Place& place = order_[position % order_.size()];
  char* const slot = static_cast<char*>(memory_.tensor().data) +
                     static_cast<std::int64_t>(position % num_slots_) * slot_bytes_;
  std::vector<Part> parts;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    const Tensor& whole = at_rest_[kind][place.unit];
    if (whole.numel == 0) continue;
    const std::int64_t numbers = block_ / kinds_[kind].elements, first = place.block * numbers;
    parts.push_back(
        {whole.part(first, std::min(numbers, whole.numel - first)), slot + offsets_[kind]});
  }
  return parts;
}

void StateRing::read(std::size_t position) {
  std::vector<OffloadHome::Ticket>& tickets = reads_[position % num_slots_];
  tickets.clear();
  for (const Part& part : parts_of(position)) {
    tickets.push_back(home_.read(part.at_rest.data, part.memory));
  }
}

void StateRing::enter(int unit, std::int64_t block) {
  const auto is_at = [&](const Place& place) {
    return place.unit == static_cast<std::size_t>(unit) && place.block == block;
  };
  if (entered_ && is_at(order_[position_ % order_.size()])) return;
  leave();
  if (!started_) {
    for (std::size_t i = 0; i < num_slots_; ++i) read(position_ + i);
    started_ = true;
  }
  SHERD_CHECK(is_at(order_[position_ % order_.size()]),
              "block {} of unit {} isn't the next of the update", block, unit);
  for (const OffloadHome::Ticket ticket : reads_[position_ % num_slots_]) home_.wait(ticket);
  current_ = parts_of(position_);
  entered_ = true;
}

void StateRing::leave() {
  if (!entered_) return;
  for (const Part& part : current_) home_.write(part.at_rest.data, part.memory);
  // Into the same memory, so it starts when the writes are done.
  read(position_ + num_slots_);
  ++position_;
  entered_ = false;
  current_.clear();
}

Tensor StateRing::here(const Tensor& at_rest) const {
  if (!home_.has(at_rest.data)) return at_rest;
  for (const Part& part : current_) {
    const std::ptrdiff_t byte =
        static_cast<char*>(at_rest.data) - static_cast<char*>(part.at_rest.data);
    if (byte < 0 || byte >= part.at_rest.bytes()) continue;
    SHERD_CHECK(byte + at_rest.bytes() <= part.at_rest.bytes(), "state that is in two blocks");
    return {part.memory + byte, at_rest.dtype, at_rest.numel};
  }
  SHERD_CHECK(false, "state on disk that isn't in the entered block");
  __builtin_unreachable();
}

}  // namespace sherd::optim
