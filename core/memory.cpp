#include "core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sherd {

std::vector<BufferSpec> present(std::initializer_list<const std::optional<BufferSpec>*> specs) {
  std::vector<BufferSpec> list;
  for (const std::optional<BufferSpec>* spec : specs) {
    if (*spec) list.push_back(**spec);
  }
  return list;
}

std::string_view name_of(Category category) {
  switch (category) {
    case Category::kParameters:
      return "parameters";
    case Category::kMaster:
      return "master";
    case Category::kGradients:
      return "gradients";
    case Category::kOptimizer:
      return "optimizer";
    case Category::kGatheredParameters:
      return "gathered_parameters";
    case Category::kUnreducedGradients:
      return "unreduced_gradients";
    case Category::kActivations:
      return "activations";
    case Category::kLogits:
      return "logits";
    case Category::kCommunication:
      return "communication";
    case Category::kWorkspace:
      return "workspace";
    case Category::kData:
      return "data";
    case Category::kCheckpoint:
      return "checkpoint";
  }
  return "?";
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case kInit:
      return "init";
    case kForward:
      return "forward";
    case kLoss:
      return "loss";
    case kBackward:
      return "backward";
    case kUpdate:
      return "update";
    case kEvaluation:
      return "evaluation";
    case kAlways:
      return "always";
  }
  return "?";
}

struct Buffer::Holding {
  Allocator* allocator = nullptr;
  BufferSpec spec;
  Tensor tensor;
  bool alive = false;
  std::int64_t life = 0;
};

Buffer::Buffer() noexcept = default;
Buffer::Buffer(Buffer&& other) noexcept = default;

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (holding_ && holding_ != other.holding_) holding_->allocator->give_back(*holding_);
  holding_ = std::move(other.holding_);
  return *this;
}

Buffer::~Buffer() {
  if (holding_) holding_->allocator->give_back(*holding_);
}

const Tensor& Buffer::tensor() const {
  static const Tensor kNone;
  if (!holding_) return kNone;
  SHERD_CHECK(holding_->alive, "buffer {} is used outside of its phases", holding_->spec.name);
  return holding_->tensor;
}

std::int64_t Buffer::life() const {
  return holding_ ? holding_->life : 0;
}

Allocator::Allocator() = default;
Allocator::~Allocator() = default;

Buffer Allocator::acquire(const BufferSpec& spec) {
  SHERD_CHECK(spec.numel >= 0, "buffer {} of {} elements", spec.name, spec.numel);
  std::lock_guard lock(mutex_);
  Buffer buffer;
  buffer.holding_ = std::make_unique<Buffer::Holding>();
  Buffer::Holding& holding = *buffer.holding_;
  holding.tensor = {place(spec), spec.dtype, spec.numel};
  holding.allocator = this;
  holding.spec = spec;
  if (spec.phases != kAlways) passing_.push_back(&holding);
  acquired_.push_back(spec);
  if ((spec.phases & phase_) != 0) set_alive(holding, true);
  return buffer;
}

void Allocator::enter(Phase phase) {
  std::lock_guard lock(mutex_);
  if (phase_ == phase) return;
  // Buffers that die make room for new ones.
  for (Buffer::Holding* holding : passing_) {
    if ((holding->spec.phases & phase) == 0) set_alive(*holding, false);
  }
  phase_ = phase;
  for (Buffer::Holding* holding : passing_) {
    if ((holding->spec.phases & phase) != 0) set_alive(*holding, true);
  }
  note_peaks();
}

void Allocator::set_alive(Buffer::Holding& holding, bool alive) noexcept {
  if (holding.alive == alive) return;
  holding.alive = alive;
  const std::int64_t bytes = holding.spec.bytes();
  const auto category = static_cast<std::size_t>(holding.spec.category);
  current_[category] += alive ? bytes : -bytes;
  current_bytes_ += alive ? bytes : -bytes;
  if (!alive) return went_away(holding.spec, holding.tensor.data);
  ++holding.life;
  came_alive(holding.spec, holding.tensor.data);
  peak_[category] = std::max(peak_[category], current_[category]);
  note_peaks();
}

void Allocator::note_peaks() noexcept {
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  for (int i = 0; i < kNumPhases; ++i) {
    if (phase_ != (1u << i) || current_bytes_ < peak_of_phase_[i]) continue;
    peak_of_phase_[i] = current_bytes_;
    peak_by_phase_[i] = current_;
  }
}

void Allocator::give_back(Buffer::Holding& holding) noexcept {
  std::lock_guard lock(mutex_);
  set_alive(holding, false);
  std::erase(passing_, &holding);
  remove(holding.spec, holding.tensor.data);
}

BytesByCategory Allocator::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}
BytesByCategory Allocator::peak_by_category() const {
  std::lock_guard lock(mutex_);
  return peak_;
}
BytesByPhase Allocator::peak_by_phase() const {
  std::lock_guard lock(mutex_);
  return peak_by_phase_;
}
std::int64_t Allocator::current_bytes() const {
  std::lock_guard lock(mutex_);
  return current_bytes_;
}
std::int64_t Allocator::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}
std::vector<BufferSpec> Allocator::acquired() const {
  std::lock_guard lock(mutex_);
  return acquired_;
}

HeapAllocator::~HeapAllocator() = default;

void* HeapAllocator::place(const BufferSpec& spec) {
  constexpr std::size_t kAlignment = 4096;
  const auto bytes = static_cast<std::size_t>(spec.bytes());
  const std::size_t pages = std::max((bytes + kAlignment - 1) / kAlignment, std::size_t{1});
  void* data = std::aligned_alloc(kAlignment, pages * kAlignment);
  if (!data) throw std::bad_alloc();
  std::memset(data, 0, pages * kAlignment);
  return data;
}

void HeapAllocator::remove(const BufferSpec&, void* data) noexcept {
  std::free(data);
}

void HeapAllocator::came_alive(const BufferSpec&, void*) noexcept {}

void HeapAllocator::went_away(const BufferSpec& spec, void* data) noexcept {
  std::memset(data, 0xff, static_cast<std::size_t>(spec.bytes()));  // NaN in every float type
}

}  // namespace sherd
