/// Gathers a unit's parameters in blocks (Precision::gather_blocks): encode -> all_gather -> decode.
///
///   parameters = decode(encode(FP32 slice)), rounded once to the compute type
///
/// All ranks decode every slice, their own too, so all compute with the same parameters. Where no
/// gather is needed (stage 0), `round` gives the same numbers.
///
/// Replicas that divide the optimizer's state gather the bytes of their part first, once per update.
/// At stage 3 they keep them (UnitState::coded_part) for the gathers of their group.
///
/// Order    encode, exchange if replicas divide parts, gather; all on the gather stream
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

  /// This rank's FP32 slice of the unit -> its bytes.
  void encode(Stream& stream, int unit, const Tensor& own);
  /// The replicas' slices of this rank's part.
  void exchange(Stream& stream, Communicator& replicas, int unit);
  /// The parts of the ZeRO group -> all parameters, in the compute type.
  void gather(Stream& stream, Communicator& group, int unit, const Tensor& full);
  void round(Stream& stream, int unit, int slice, const Tensor& fp32, const Tensor& out);

 private:
  Tensor all_bytes(int unit) const;
  Tensor part_of(int unit, const Tensor& all_bytes) const;
  /// Where the bytes of this rank's part are encoded.
  Tensor own_part(int unit) const;

  const std::vector<UnitState>* units_;
  std::vector<std::optional<WireLayout>> layouts_;  // by unit
  Buffer bytes_;
};

/// The layout of a unit's bytes: a piece for each slice. A rank sends its part's.
WireLayout gather_layout(const UnitPlan& unit);

}  // namespace sherd::sharding
