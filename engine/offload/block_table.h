/// Addresses of state on disk, and the blocks that they belong to.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/memory_plan.h"
#include "engine/offload/state_file.h"

namespace sherd::engine {

/// Addresses without memory: whoever follows one stops at once.
/// Errors   TrainingError: the machine refuses them.
class Addresses {
 public:
  explicit Addresses(std::int64_t bytes);
  ~Addresses();
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  char* begin() const { return begin_; }
  bool has(const void* address) const { return address >= begin_ && address < begin_ + bytes_; }

 private:
  char* begin_ = nullptr;
  std::int64_t bytes_;
};

/// The blocks of all buffers of a plan, in the order of their offsets.
class BlockTable {
 public:
  /// `snapshots`: blocks of state, but not of activations, are kept for them.
  BlockTable(const MemoryPlan& plan, bool snapshots);
  const std::vector<StateFile::BlockSize>& sizes() const { return sizes_; }

  struct Position {
    std::size_t block = 0;
    std::int64_t byte = 0;  ///< in the block
  };
  /// Of a byte of the plan, which belongs to a buffer (SHERD_CHECK).
  Position find(std::int64_t offset) const;

 private:
  struct Range {
    std::size_t first = 0;
    std::int64_t block = 0, bytes = 0;
  };
  std::map<std::int64_t, Range> ranges_;  // by offset of the buffer
  std::vector<StateFile::BlockSize> sizes_;
};

}  // namespace sherd::engine
