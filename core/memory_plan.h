/// All buffers of one rank and their places, computed before anything is allocated.
///
///   live bytes of a phase    the sum of the buffers that are alive in it
///   peak                     the largest of these; no placement can need less, and some need more:
///                            if each two of three buffers share a phase, no two can share memory
///   arena                    what the placement needs
///
/// Buffers with the same phases form one region. Two regions share memory if they have no phase in
/// common (logits and backward workspace; an optimizer's workspace and the activations). With up to
/// 8 regions, every order of stacking them is tried. With more, three orders are tried: as given,
/// largest first, and most phases first. The lowest result wins. If it is more than half a percent
/// above the peak, buffers that aren't always alive are also stacked one by one. docs/memory.md
/// says how far the arena is above the peak.
///
/// Errors   UsageError if bytes overflow 64 bits.
#pragma once

#include <vector>

#include "core/memory.h"

namespace sherd {

struct PlannedBuffer {
  BufferSpec spec;
  std::int64_t offset = 0;  ///< bytes from the arena's start
};

class MemoryPlan {
 public:
  MemoryPlan() = default;
  explicit MemoryPlan(std::vector<BufferSpec> buffers);

  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }
  std::int64_t arena_bytes() const { return arena_bytes_; }
  std::int64_t peak_bytes() const;
  Phase peak_phase() const;
  BytesByCategory peak_by_category() const;  ///< each category's own maximum over phases
  /// Live bytes of every phase, in the order of the enumerators.
  const BytesByPhase& by_phase() const { return by_phase_; }
  std::int64_t live_bytes(Phase phase) const;
  /// Buffers that are alive always.
  const BytesByCategory& at_rest() const { return at_rest_; }

  /// Forgets the buffers, and keeps all sums.
  void keep_sums_only() { std::vector<PlannedBuffer>().swap(buffers_); }

 private:
  void place();
  std::int64_t place_in_regions(bool alone);

  std::vector<PlannedBuffer> buffers_;
  BytesByPhase by_phase_{};
  BytesByCategory at_rest_{};
  std::int64_t arena_bytes_ = 0;
};

std::int64_t sum(const BytesByCategory& bytes);

/// Alignment of a buffer's place in an arena. Checkpoints are written directly from their ring, by
/// pages, and so is what moves between memory and a disk.
inline std::int64_t alignment_of(const BufferSpec& spec) {
  return spec.category == Category::kCheckpoint || spec.disk_block > 0 ? 4096 : 256;
}

}  // namespace sherd
