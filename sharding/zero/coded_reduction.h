/// Reduces gradients in blocks: encode -> all_to_all -> sum. Within the ZeRO group they are
/// Precision::reduce_blocks, among replicas Precision::replica_blocks; either may be missing.
///
///   out[i] = sum over r of decode(encode(full_r))[i], for i of this rank's piece
///
/// It replaces Communicator::reduce_scatter. Every rank encodes its gradient, its own piece too.
/// Decoded pieces are added in f32 in rank order, so a sum doesn't depend on how ranks exchange it.
/// A rank alone also rounds its gradient.
///
/// Order    `exchange`, then any number of `add`. Only on the reduce stream: its two buffers serve
///          all units.
/// Cost     each rank sends 8.25 or 4.25 bits an element instead of 32.
#pragma once

#include <optional>
#include <vector>

#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"
#include "sharding/zero/unit.h"
#include "sharding/zero/wire_layout.h"

namespace sherd::sharding {

/// Encoded gradients: what this rank sends, and what it receives if there are other ranks.
std::vector<BufferSpec> coded_reduction_buffers(const std::vector<UnitPlan>& units,
                                                int num_micro_steps);

/// A piece for each rank of the ZeRO group.
WireLayout reduction_layout(const UnitPlan& unit);
/// A piece for each replica of each rank of the ZeRO group.
WireLayout replica_layout(const UnitPlan& unit);

class CodedReduction {
 public:
  CodedReduction(const Rank& rank, const std::vector<UnitState>& units, int num_micro_steps);

  /// Sends the pieces of `full` to the ranks of the unit's ZeRO group.
  void exchange(Stream& stream, Communicator& communicator, int unit, const Tensor& full);
  /// Adds what the ranks among `addends` have sent of this rank's piece to `out`, or writes it.
  void add(Stream& stream, int unit, const Tensor& out, const Addends& addends);
  /// Adds `part`, the sum of each replica, over replicas; leaves this rank's piece of the sum.
  void add_replicas(Stream& stream, Communicator& communicator, int unit, const Tensor& part);
  /// Rounds a part as `add_replicas` does before it adds: the sum of a group of the batch.
  void round(Stream& stream, int unit, const Tensor& part);

 private:
  struct Layouts {
    std::optional<WireLayout> group;
    std::optional<WireLayout> replicas, parts;  ///< of Precision::replica_blocks
  };
  void send(Stream& stream, Communicator& communicator, int unit, const WireLayout& layout,
            int first_piece, const Tensor& elements);
  Tensor received(int ranks, std::int64_t bytes) const;

  const std::vector<UnitState>* units_;
  std::vector<Layouts> layouts_;  // by unit
  Buffer sent_, received_;
};

}  // namespace sherd::sharding
