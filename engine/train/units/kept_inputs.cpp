#include "engine/train/units/kept_inputs.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/model/activations.h"
#include "engine/model/adapter.h"
#include "engine/model/transformer.h"

namespace sherd::engine {
namespace {

// One that is computed, one that is read, and two that move.
constexpr int kSlots = 4;

}  // namespace

int KeptInputs::slots(std::int64_t num_layers) {
  return num_layers + 1 > kSlots ? kSlots : 0;
}

std::vector<BufferSpec> KeptInputs::buffers(const model::ModelShape& shape) {
  std::vector<BufferSpec> buffers;
  if (shape.residual_slots == 0) return buffers;
  // Those below the lowest block with a backward aren't read again.
  for (std::int64_t block = model::lowest_trained_block(shape);
       block + shape.residual_slots <= shape.num_layers; ++block) {
    BufferSpec buffer = model::Activations::residual_slot(shape, 0);
    buffer.name = fmt::format("block.{}.input", block);
    buffer.numel = shape.residual_tokens() * shape.width;
    buffer.phases = kAlways;
    buffer.home = Home::kDisk;
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::int64_t KeptInputs::bytes(const model::ModelShape& shape) {
  std::int64_t bytes = 0;
  for (const BufferSpec& buffer : buffers(shape)) bytes += buffer.bytes();
  return bytes;
}

KeptInputs::KeptInputs(const sharding::Rank& rank, const model::ModelShape& shape,
                       const model::Transformer& transformer)
    : home_(*rank.offload_home),
      transformer_(transformer),
      slots_(shape.residual_slots),
      first_(static_cast<int>(model::lowest_trained_block(shape))),
      asked_(static_cast<std::size_t>(shape.residual_slots)) {
  for (const BufferSpec& buffer : buffers(shape)) on_disk_.push_back(rank.acquire(buffer));
}

KeptInputs::~KeptInputs() {
  home_.drain();
}

Tensor KeptInputs::slot_of(int block) const {
  return transformer_.residual_slot(block % slots_);
}

void KeptInputs::wait(int block) {
  std::vector<OffloadHome::Ticket>& tickets = asked_[static_cast<std::size_t>(block % slots_)];
  for (const OffloadHome::Ticket ticket : tickets) home_.wait(ticket);
  tickets.clear();
}

// ask(address on disk, memory) returns a ticket.
template <class Ask>
void KeptInputs::each_block(int block, const Ask& ask) {
  const Tensor at_rest = on_disk_[static_cast<std::size_t>(block - first_)].tensor();
  const Tensor memory = slot_of(block);
  std::vector<OffloadHome::Ticket>& tickets = asked_[static_cast<std::size_t>(block % slots_)];
  for (std::int64_t first = 0; first < at_rest.numel; first += model::kResidualBlock) {
    const std::int64_t count = std::min(model::kResidualBlock, at_rest.numel - first);
    tickets.push_back(ask(at_rest.part(first, count).data, memory.part(first, count).data));
  }
}

void KeptInputs::before_write(int block) {
  wait(block);
}

void KeptInputs::read(int block) {
  if (block < first_ || block - first_ >= std::ssize(on_disk_)) return;
  each_block(block, [this](void* address, void* memory) { return home_.write(address, memory); });
}

void KeptInputs::before_read(int block) {
  wait(block);
}

void KeptInputs::done(int block) {
  const int next = block - slots_;
  if (next < first_) return;
  each_block(next, [this](void* address, void* memory) { return home_.read(address, memory); });
}

}  // namespace sherd::engine
