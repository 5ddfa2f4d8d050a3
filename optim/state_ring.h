/// Brings state from disk into memory for an update, block by block, and takes it back.
///
/// An update goes through all blocks of the rank's slices in one order, the same in every step. The
/// ring has memory for a few blocks of all kinds of state. While one is in use, the next are being
/// read and those before are being written. After a step's last block the reads for the next step
/// begin, so they are done long before it.
///
///   ring.enter(unit, block);                 // waits until it is in memory
///   update(ring.here(exp_avg), ...);
///   ring.leave();                            // it will be written; the memory is the ring's again
///
/// Nothing is stale: a block is read after it was written. Bits are those without a ring.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/offload_home.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// One kind of state on disk.
struct OffloadedKind {
  DType dtype = DType::kF32;
  std::int64_t elements = 1;  ///< that one number stands for: 64 for scales of 8-bit states
};

/// Elements of a block, if `kinds` are on disk and a rank has `buffer_bytes` of staging memory: a
/// multiple of 512.
std::int64_t offload_block(std::span<const OffloadedKind> kinds, std::int64_t buffer_bytes);

class StateRing {
 public:
  static BufferSpec buffer(std::span<const OffloadedKind> kinds, std::int64_t block,
                           const std::vector<sharding::UnitPlan>& units);

  /// `at_rest`: by kind, then by unit, the buffers on disk; empty where the unit has none.
  StateRing(const sharding::Rank& rank, std::vector<OffloadedKind> kinds,
            std::vector<std::vector<Tensor>> at_rest, std::int64_t block,
            const std::vector<sharding::UnitState>& units);
  ~StateRing();
  StateRing(const StateRing&) = delete;
  StateRing& operator=(const StateRing&) = delete;

  std::int64_t block() const { return block_; }
  /// The blocks of a unit in their order, units in theirs. Leaves the one before; does nothing for
  /// the one that is entered.
  void enter(int unit, std::int64_t block);
  void leave();
  /// A part of the entered block, in memory. What isn't on disk is returned as it is.
  Tensor here(const Tensor& at_rest) const;

 private:
  struct Place {
    std::size_t unit = 0;
    std::int64_t block = 0;
  };
  /// Of one kind in a block: where it rests, and where it is in memory.
  struct Part {
    Tensor at_rest;
    char* memory = nullptr;
  };
  std::vector<Part> parts_of(std::size_t position) const;
  void read(std::size_t position);

  OffloadHome& home_;
  const std::vector<OffloadedKind> kinds_;
  const std::vector<std::vector<Tensor>> at_rest_;
  const std::int64_t block_;
  std::vector<Place> order_;
  std::vector<std::int64_t> offsets_;  // of the kinds in a slot
  std::int64_t slot_bytes_ = 0;
  std::size_t num_slots_ = 0;
  Buffer memory_;
  std::vector<std::vector<OffloadHome::Ticket>> reads_;  // by slot
  bool started_ = false, entered_ = false;
  std::size_t position_ = 0;  // in order_
  std::vector<Part> current_;
};

}  // namespace sherd::optim
