/// Gathers a unit's parameters in blocks (Precision::gather_blocks): encode -> all_gather -> decode.
///
///   parameters = decode(encode(FP32 slice)), rounded once to the compute type
///
/// All ranks decode every slice, their own too, so all compute with the same parameters. Where no
/// gather is needed (stage 0), `round` gives the same numbers.
#pragma once

#include <optional>
#include <vector>

#include "sharding/mesh/rank.h"
#include "sharding/zero/unit.h"
#include "sharding/zero/wire_layout.h"

namespace sherd::sharding {

class Communicator;

/// The bytes of all slices of a unit. One buffer serves all units, since the gather stream gathers
/// them one by one. None without such units, or if their parameters aren't gathered.
std::optional<BufferSpec> coded_gather_buffer(const std::vector<UnitPlan>& units);

class CodedGather {
 public:
  CodedGather(const Rank& rank, const std::vector<UnitState>& units);

  /// `own`: this rank's FP32 slice of the unit; `full`: its parameters in the compute type.
  void gather(Stream& stream, Communicator& communicator, int unit, const Tensor& own,
              const Tensor& full);
  void round(Stream& stream, int unit, int slice, const Tensor& fp32, const Tensor& out);

 private:
  const std::vector<UnitState>* units_;
  std::vector<std::optional<WireLayout>> layouts_;  // by unit
  Buffer bytes_;
};

/// The layout of what a rank sends of the unit: a piece for each rank of its ZeRO group.
WireLayout gather_layout(const UnitPlan& unit);

}  // namespace sherd::sharding
