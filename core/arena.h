/// The memory of one rank of a run: one mapping as large as its plan, in which every buffer has its
/// place. Nothing can be acquired that isn't planned, and nothing as anything but what was planned.
///
/// Pages are touched first by whoever writes them first. Compiled with SHERD_POISON_ARENA, under
/// the address sanitizer everything outside of living buffers is poisoned, gaps between them
/// included.
///
/// Errors   a buffer that isn't in the plan, or not like this, or is there already, is our bug
///          (CHECK). TrainingError if the machine refuses the mapping.
#pragma once

#include <string>
#include <unordered_map>

#include "core/memory_plan.h"

namespace sherd {

class Arena final : public Allocator {
 public:
  explicit Arena(MemoryPlan plan);
  ~Arena() override;

  const MemoryPlan& plan() const { return plan_; }
  /// Planned buffers that nobody has acquired so far.
  std::vector<std::string> not_acquired() const;
  /// What of it is in memory: the pages that somebody has written so far (and that aren't swapped
  /// out).
  std::int64_t resident_bytes() const;

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
  char* memory_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace sherd
