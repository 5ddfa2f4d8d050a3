/// What a rank sends in a step, known beforehand: every room that communicates lists its own
/// collectives, as it lists its buffers.
///
/// Elements that each rank sends, for F = W * S elements in full:
///
///   all_gather       (W - 1) * S
///   reduce_scatter   (W - 1) * S
///   all_reduce       2 (W - 1) * S
///   all_to_all       (W - 1) * S
///   broadcast        (W - 1) * F from the root, nothing from the others
///
/// Errors   UsageError if bytes overflow 64 bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace sherd::sharding {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
std::string_view name_of(Collective collective);

/// All calls of one kind, for one purpose.
struct Sent {
  std::string label;  ///< "parameters", "gradients", "step stats", ...
  Collective collective = Collective::kAllGather;
  DType dtype = DType::kF32;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< sent by the rank in all of them

  bool operator==(const Sent&) const = default;
};

class Traffic {
 public:
  /// `calls` calls in a group of `group_size` ranks, on `full_numel` elements each. A broadcast:
  /// this rank is its root.
  void add(const std::string& label, Collective collective, DType dtype, std::int64_t full_numel,
           int group_size, std::int64_t calls = 1);
  /// Calls in which this rank sends nothing: broadcasts from others, reductions of others' contributions.
  void add_silent(const std::string& label, Collective collective, DType dtype,
                  std::int64_t calls = 1);
  void add(const Traffic& other);

  const std::vector<Sent>& sent() const { return sent_; }
  std::int64_t total_bytes() const;

 private:
  Sent& line(const std::string& label, Collective collective, DType dtype);

  std::vector<Sent> sent_;  ///< in the order in which they were first added
};

}  // namespace sherd::sharding
