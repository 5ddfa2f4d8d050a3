/// Updates state in the host's memory on the host's cores, for a GPU that has computed the
/// gradient. So moments and FP32 weights never cross the link: a gradient comes down, and rounded
/// weights go up.
///
///   gradients to host   | block 0 | block 1 | block 2 | ...
///   update on the host            | block 0 | block 1 | ...
///   weights from host                       | block 0 | ...
///
/// Each line is a stream. They share a ring of a few blocks in page-locked memory: the gradient of
/// a block and its rounded weights. Units follow one another, and a use of a unit waits for its own
/// last block alone (`stream`, ParameterGather::publish). So later units are updated under the next
/// forward of earlier ones.
///
/// Gradients come down after the step's verdict: only then is it known whether there is an update.
/// A copy is several times as fast as the update of its block, so all but the first are hidden, and
/// the host needs no room for whole gradients.
///
/// Bits  those of an update on the device: kernels/update.h has one formula for both, and neither
///       contracts it.
/// Order what the compute stream has done so far comes before a step's first block. Each gather of
///       the step is among it, since compute has waited for its weights.
///       A gradient isn't overwritten too early: the next backward of a unit follows its forward,
///       which waits for its update.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace sherd::optim {

class HostUpdate {
 public:
  /// A block of at most `block` elements of a slice.
  struct Block {
    ConstTensor gradient;  ///< on the device
    Tensor rounded;        ///< there, too; may be empty
    /// Bytes of state that the update reads and writes on the host.
    DiskTraffic moves{};
    /// Enqueues the update on a CPU stream, with the block's tensors on the host.
    std::function<void(Stream& cores, const ConstTensor& gradient, const Tensor& rounded)> update;
  };

  /// Whether the unit's FP32 weights are on the host, with OffloadOptions::host_updates: only such
  /// units are updated there.
  static bool has(const sharding::UnitPlan& unit) { return unit.fp32_disk_block > 0; }
  /// The ring, if any unit is updated on the host; otherwise nothing.
  static std::vector<BufferSpec> buffers(const std::vector<sharding::UnitPlan>& units,
                                         std::int64_t block);
  /// What a step copies: gradients are written to the host, rounded weights are read from it.
  static DiskTraffic traffic(const std::vector<sharding::UnitPlan>& units);

  /// The rank has a home on the host.
  HostUpdate(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
             std::int64_t block);
  ~HostUpdate();
  HostUpdate(const HostUpdate&) = delete;
  HostUpdate& operator=(const HostUpdate&) = delete;

  bool updates(int unit) const { return updates_[static_cast<std::size_t>(unit)]; }
  /// Call it before a step's first block. Rethrows what an earlier update has thrown, which no event
  /// of a GPU tells.
  void begin_step();
  void add(const Block& block);
  /// Its work so far includes all updates so far, and the rounded weights of them.
  Stream& stream() const { return *up_; }

 private:
  struct Slot {
    char *gradient = nullptr, *rounded = nullptr;
    std::unique_ptr<Event> fetched, updated, sent;
  };

  const sharding::Rank& rank_;
  std::vector<bool> updates_;  // by unit
  Buffer memory_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // number of the next block, in the run
  std::unique_ptr<Event> computed_;
  std::unique_ptr<Stream> down_, up_;
  std::shared_ptr<Stream> cores_;
  std::shared_ptr<Stream> cpu_;  // runs kernels where it is called: in the work of cores_
};

}  // namespace sherd::optim
