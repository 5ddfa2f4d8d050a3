#include "core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sherd {

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

Buffer::~Buffer() {
  if (allocator_) allocator_->give_back(*this);
}

Buffer Allocator::acquire(const BufferSpec& spec) {
  CHECK(spec.numel >= 0, "buffer {} of {} elements", spec.name, spec.numel);
  Buffer buffer;
  buffer.category_ = spec.category;
  constexpr std::size_t kAlignment = 4096;
  const auto bytes = static_cast<std::size_t>(spec.bytes());
  const std::size_t rounded = std::max((bytes + kAlignment - 1) / kAlignment, std::size_t{1});
  void* data = std::aligned_alloc(kAlignment, rounded * kAlignment);
  if (!data) throw std::bad_alloc();
  std::memset(data, 0, rounded * kAlignment);
  buffer.tensor_ = {data, spec.dtype, spec.numel};
  buffer.allocator_ = this;

  std::lock_guard lock(mutex_);
  const auto category = static_cast<std::size_t>(spec.category);
  current_[category] += spec.bytes();
  peak_[category] = std::max(peak_[category], current_[category]);
  current_bytes_ += spec.bytes();
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  acquired_.push_back(spec);
  return buffer;
}

void Allocator::give_back(Buffer& buffer) noexcept {
  {
    std::lock_guard lock(mutex_);
    current_[static_cast<std::size_t>(buffer.category_)] -= buffer.tensor_.bytes();
    current_bytes_ -= buffer.tensor_.bytes();
  }
  std::free(buffer.tensor_.data);
}

BytesByCategory Allocator::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}
BytesByCategory Allocator::peak_by_category() const {
  std::lock_guard lock(mutex_);
  return peak_;
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

}  // namespace sherd
