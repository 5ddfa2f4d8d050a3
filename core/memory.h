/// All tensor memory comes from here. Every buffer states its name, its purpose and when it is
/// alive. It is counted when it comes alive and when it goes away.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
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

/// A rank's time, divided into phases that never overlap. A buffer names the phases in which it is
/// alive; buffers without a common phase may share memory. Communication isn't a phase, because it
/// overlaps other phases. Its buffers are alive in every phase during which it may run.
enum Phase : std::uint32_t {
  kInit = 1u << 0,        ///< between construction and the first step
  kForward = 1u << 1,     ///< embedding and blocks of a micro-step
  kLoss = 1u << 2,        ///< head, loss and their gradients
  kBackward = 1u << 3,    ///< blocks and embedding, and the end of all reductions
  kUpdate = 1u << 4,      ///< step stats and optimizer
  kEvaluation = 1u << 5,  ///< evaluation and sampling: forward only
  kAlways = (1u << 6) - 1,
};
using Phases = std::uint32_t;
inline constexpr int kNumPhases = 6;
inline constexpr Phases kForwardToBackward = kForward | kLoss | kBackward;
std::string_view name_of(Phase phase);
/// Index of a phase, in the order of the enumerators.
constexpr int phase_index(Phase phase) {
  return std::countr_zero(static_cast<unsigned>(phase));
}

/// Bytes that move between memory and a disk.
struct DiskTraffic {
  std::int64_t read = 0, written = 0;
};

/// Where a buffer is. On a CPU all homes but kDisk are the same memory.
enum class Home : std::uint8_t {
  kDevice,    ///< the device's memory
  kHost,      ///< host memory that the device can copy from and to: only for host code and copies
  kMirrored,  ///< both: a buffer in the device's memory and its twin on the host, which host code
              ///< reads or writes (sharding/mesh/mirrored_buffer.h)
  kDisk,      ///< a file: it has addresses but no memory (core/offload_home.h)
};

struct BufferSpec {
  std::string name;
  Category category;
  DType dtype;
  std::int64_t numel;
  Phases phases = kAlways;
  Home home = Home::kDevice;
  /// kDisk: elements of a block. Elsewhere, if it isn't 0: the buffer is read and written directly,
  /// so it is placed on pages.
  std::int64_t disk_block = 0;

  std::int64_t bytes() const { return numel * static_cast<std::int64_t>(size_of(dtype)); }
  bool operator==(const BufferSpec&) const = default;
};

/// The optional specs that have a value, in order.
std::vector<BufferSpec> present(std::initializer_list<const std::optional<BufferSpec>*> specs);

using BytesByCategory = std::array<std::int64_t, kNumCategories>;
using BytesByPhase = std::array<BytesByCategory, kNumPhases>;

class Allocator;

/// Owns one piece of tensor memory and frees it when destroyed. A buffer that is always alive
/// starts as zeros. The content of any other buffer is undefined when one of its phases begins.
class Buffer {
 public:
  Buffer() noexcept;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  /// Valid until the end of the phase. A call outside of the buffer's phases is our bug
  /// (SHERD_CHECK).
  const Tensor& tensor() const;
  operator Tensor() const { return tensor(); }       // NOLINT: a buffer is the tensor it holds
  operator ConstTensor() const { return tensor(); }  // NOLINT
  explicit operator bool() const { return holding_ != nullptr; }
  /// How often the buffer has come alive. Content from an earlier life is lost.
  std::int64_t life() const;

 private:
  friend class Allocator;
  struct Holding;
  std::unique_ptr<Holding> holding_;
};

/// One per rank; must outlive its buffers. Counts every buffer while it is alive. Any thread may
/// acquire; the rank's own thread changes the phase.
class Allocator {
 public:
  Allocator();
  virtual ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  Buffer acquire(const BufferSpec& spec);

  /// From now on only the buffers of this phase are alive. Before the first call all buffers are.
  /// Other streams must have finished their work on buffers that die here.
  void enter(Phase phase);

  BytesByCategory current() const;
  BytesByCategory peak_by_category() const;  ///< each category's own maximum over time
  BytesByPhase peak_by_phase() const;        ///< by category, when that phase held most
  std::int64_t current_bytes() const;
  std::int64_t peak_bytes() const;           ///< the maximum over time of the sum
  std::vector<BufferSpec> acquired() const;  ///< every buffer ever acquired, in order

 protected:
  /// Where the buffer is placed whenever it is alive.
  virtual void* place(const BufferSpec& spec) = 0;
  virtual void remove(const BufferSpec& spec, void* data) noexcept = 0;
  /// The bytes at `data` may be used from now on, or no longer.
  virtual void came_alive(const BufferSpec& spec, void* data) noexcept = 0;
  virtual void went_away(const BufferSpec& spec, void* data) noexcept = 0;

 private:
  friend class Buffer;
  void set_alive(Buffer::Holding& holding, bool alive) noexcept;
  void note_peaks() noexcept;
  void give_back(Buffer::Holding& holding) noexcept;

  mutable std::mutex mutex_;
  Phases phase_ = kAlways;
  std::vector<Buffer::Holding*> passing_;  // buffers that aren't alive always
  BytesByCategory current_{};
  BytesByCategory peak_{};
  BytesByPhase peak_by_phase_{};
  std::array<std::int64_t, kNumPhases> peak_of_phase_{};
  std::int64_t current_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  std::vector<BufferSpec> acquired_;
};

/// Takes each buffer from the heap, aligned to 4096 bytes: for measurements and tests, which have
/// no plan. A run allocates from an Arena (core/arena.h). Freed buffers are overwritten, so code
/// that relies on their content is detected.
class HeapAllocator final : public Allocator {
 public:
  ~HeapAllocator() override;

 private:
  void* place(const BufferSpec& spec) override;
  void remove(const BufferSpec& spec, void* data) noexcept override;
  void came_alive(const BufferSpec& spec, void* data) noexcept override;
  void went_away(const BufferSpec& spec, void* data) noexcept override;
};

}  // namespace sherd
