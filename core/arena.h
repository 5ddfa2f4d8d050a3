/// The memory of one rank: a single allocation as large as the rank's memory plan. The plan gives
/// every buffer its place. A buffer can be acquired only if it is planned, and only as planned.
///
/// On the host the arena is a mapping with 2 MiB pages where the system grants them (transparent
/// huge pages). Each page is first touched by the thread that first writes to it.
/// Compiled with SHERD_POISON_ARENA, under the address sanitizer, everything outside of live
/// buffers is poisoned, including the gaps between them. On a GPU: core/cuda_device.h.
///
/// Errors   acquiring a buffer that isn't in the plan, differs from it, or is already acquired is
///          our bug (SHERD_CHECK). TrainingError if the machine refuses the memory.
#pragma once

#include <string>
#include <unordered_map>

#include "core/memory_plan.h"

namespace sherd {

/// The memory that an arena uses. Its bytes are zero at first.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual char* data() const = 0;
  virtual std::int64_t bytes() const = 0;
  /// Bytes that are in the machine's memory: the pages that were written so far and aren't swapped
  /// out. 0 on a GPU.
  virtual std::int64_t resident_bytes() const = 0;
  virtual void zero(void* data, std::int64_t bytes) = 0;
  /// These bytes may be used from now on, or no longer.
  virtual void allow(void* data, std::int64_t bytes) noexcept = 0;
  virtual void forbid(void* data, std::int64_t bytes) noexcept = 0;
};

std::unique_ptr<ArenaMemory> host_arena_memory(std::int64_t bytes);

class Arena final : public Allocator {
 public:
  explicit Arena(MemoryPlan plan);
  Arena(MemoryPlan plan, std::unique_ptr<ArenaMemory> memory);
  ~Arena() override;

  const MemoryPlan& plan() const { return plan_; }
  /// Size of the allocation: the plan's arena, rounded up to a GPU's granularity.
  std::int64_t taken_bytes() const { return memory_->bytes(); }
  /// Planned buffers that haven't been acquired yet.
  std::vector<std::string> not_acquired() const;
  /// Bytes of the arena that are in the machine's memory.
  std::int64_t resident_bytes() const { return memory_->resident_bytes(); }

 private:
  struct Place {
    std::size_t buffer = 0;  ///< index into the plan
    bool taken = false;
    bool used_before = false;
  };
  void* place(const BufferSpec& spec) override;
  void remove(const BufferSpec& spec, void* data) noexcept override;
  void came_alive(const BufferSpec& spec, void* data) noexcept override;
  void went_away(const BufferSpec& spec, void* data) noexcept override;

  MemoryPlan plan_;
  std::unique_ptr<ArenaMemory> memory_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace sherd
