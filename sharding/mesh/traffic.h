/// What a rank sends in a step, computed in advance: every room that communicates lists its
/// collectives, just as it lists its buffers.
///
/// Elements that each rank sends, for F = W * S elements in full:
///
///   all_gather       (W - 1) * S
///   reduce_scatter   (W - 1) * S
///   all_reduce       2 (W - 1) * S
///   all_to_all       (W - 1) * S
///   all_to_all_v     (W - 1) * S, if all ranks get equal parts
///   broadcast        (W - 1) * F from the root, nothing from the others
///
/// Errors   UsageError if bytes overflow 64 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "sharding/mesh/mesh.h"

namespace sherd::sharding {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll, kAllToAllV };
std::string_view name_of(Collective collective);

/// The ranks that make a call together.
struct Callers {
  int count = 1;
  /// All ranks of a group along these axes. If `count` is smaller, the block of `count` ranks that
  /// contains the rank.
  AxisSet axes{};
  std::optional<int> peer{};  ///< instead of axes: the rank itself and this world rank

  /// Their world ranks, ascending.
  std::vector<int> ranks(const Mesh& mesh, int rank) const;
  bool operator==(const Callers&) const = default;
};
/// The whole group along `axes`.
Callers group_along(const Mesh& mesh, const AxisSet& axes);

/// All calls of one kind, for one purpose, by the same ranks.
struct Sent {
  std::string label;  ///< "parameters", "gradients", "step stats", ...
  Collective collective = Collective::kAllGather;
  DType dtype = DType::kF32;
  Callers callers;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< sent by the rank in all these calls

  bool operator==(const Sent&) const = default;
};

class Traffic {
 public:
  /// `calls` calls on `full_numel` elements each. For a broadcast, this rank is the root.
  void add(const std::string& label, Collective collective, DType dtype, std::int64_t full_numel,
           const Callers& callers, std::int64_t calls = 1);
  /// Calls in which this rank sends nothing: others' broadcasts, reductions of others'
  /// contributions.
  void add_silent(const std::string& label, Collective collective, DType dtype,
                  const Callers& callers, std::int64_t calls = 1);
  /// Calls in each of which this rank sends `numel` elements, whatever the others send.
  void add_elements(const std::string& label, Collective collective, DType dtype,
                    std::int64_t numel, const Callers& callers, std::int64_t calls);
  void add(const Traffic& other);

  const std::vector<Sent>& sent() const { return sent_; }
  std::int64_t total_bytes() const;

 private:
  Sent& line(const std::string& label, Collective collective, DType dtype, const Callers& callers);

  std::vector<Sent> sent_;  ///< in the order in which they were first added
};

}  // namespace sherd::sharding
