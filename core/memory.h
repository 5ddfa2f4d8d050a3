/// The one place tensor memory comes from. Every buffer says its name, what it is for and when it
/// is alive, and is counted when it is acquired and when it is given back.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace sherd {

enum class Category : std::uint8_t {
  kParameters,          ///< resident parameters; the FP32 slice itself where compute is FP32
  kMaster,              ///< FP32 slices where compute is 16-bit
  kGradients,           ///< accumulated gradients, full or slice
  kOptimizer,           ///< moments
  kGatheredParameters,  ///< slots for full units at stage 3
  kUnreducedGradients,  ///< slots for one unit's full gradient before it is reduced
  kActivations,         ///< what the forward keeps for the backward, and what flows between
  kLogits,              ///< one chunk of logits
  kCommunication,       ///< staging of collectives
  kWorkspace,           ///< scratch of kernels
  kData,                ///< token batches
  kCheckpoint,          ///< staging of checkpoints
};
inline constexpr int kNumCategories = 12;
std::string_view name_of(Category category);

/// When a buffer is alive, as a set.
enum Phase : std::uint32_t {
  kInit = 1u << 0,
  kGather = 1u << 1,
  kForward = 1u << 2,
  kBackward = 1u << 3,
  kReduce = 1u << 4,
  kUpdate = 1u << 5,
  kCheckpointing = 1u << 6,
  kEvaluation = 1u << 7,
  kAlways = 0xffu,
};
using Phases = std::uint32_t;

struct BufferSpec {
  std::string name;
  Category category;
  DType dtype;
  std::int64_t numel;
  Phases phases = kAlways;

  std::int64_t bytes() const { return numel * static_cast<std::int64_t>(size_of(dtype)); }
};

using BytesByCategory = std::array<std::int64_t, kNumCategories>;

class Allocator;

/// Owns one piece of tensor memory, zeroed when acquired; gives it back when destroyed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  const Tensor& tensor() const { return tensor_; }
  operator Tensor() const { return tensor_; }       // NOLINT: a buffer is the tensor it holds
  operator ConstTensor() const { return tensor_; }  // NOLINT
  explicit operator bool() const { return allocator_ != nullptr; }

 private:
  friend class Allocator;
  void swap(Buffer& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(tensor_, other.tensor_);
    std::swap(category_, other.category_);
  }
  Allocator* allocator_ = nullptr;
  Tensor tensor_;
  Category category_ = Category::kParameters;
};

/// One per rank. Buffers are aligned to 4096 bytes. Must outlive its buffers. Any thread may call.
class Allocator {
 public:
  Buffer acquire(const BufferSpec& spec);

  BytesByCategory current() const;
  BytesByCategory peak_by_category() const;  ///< each category's own maximum over time
  std::int64_t current_bytes() const;
  std::int64_t peak_bytes() const;           ///< the maximum over time of the sum
  std::vector<BufferSpec> acquired() const;  ///< every buffer ever acquired, in order

 private:
  friend class Buffer;
  void give_back(Buffer& buffer) noexcept;

  mutable std::mutex mutex_;
  BytesByCategory current_{};
  BytesByCategory peak_{};
  std::int64_t current_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  std::vector<BufferSpec> acquired_;
};

}  // namespace sherd
