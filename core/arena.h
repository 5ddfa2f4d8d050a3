/// The memory of one rank of a run: one piece as large as its plan, in which every buffer has its
/// place. Nothing can be acquired that isn't planned, and nothing as anything but what was planned.
///
/// On the host it is a mapping, of pages of 2 MiB where the system grants them (transparent huge pages), which are touched
/// first by whoever writes them first.
/// Compiled with SHERD_POISON_ARENA, under the address sanitizer everything outside of living
/// buffers is poisoned, gaps between them included. On a GPU: core/cuda_device.h.
///
/// Errors   a buffer that isn't in the plan, or not like this, or is there already, is our bug
///          (SHERD_CHECK). TrainingError if the machine refuses the memory.
#pragma once

#include <string>
#include <unordered_map>

#include "core/memory_plan.h"

namespace sherd {

/// Where an arena lies. Its bytes are zero at first.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual char* data() const = 0;
  virtual std::int64_t bytes() const = 0;
  /// What of it is in the machine's memory: the pages that somebody has written so far (and that
  /// aren't swapped out). 0 on a GPU.
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
  /// What was taken from the machine: the plan's arena, rounded up by a GPU's granularity.
  std::int64_t taken_bytes() const { return memory_->bytes(); }
  /// Planned buffers that nobody has acquired so far.
  std::vector<std::string> not_acquired() const;
  /// What of it is in the machine's memory.
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
