/// What a rank sends in a step, known beforehand: every room that communicates lists its own
/// collectives, as it lists its buffers.
///
///   sent by each rank, for F = W * S elements in full     all_gather       (W - 1) * S
///                                                         reduce_scatter   (W - 1) * S
///                                                         all_reduce       2 (W - 1) * S
///                                                         broadcast        (W - 1) * F from the
///                                                         root
///
/// Errors   UsageError if bytes overflow 64 bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace sherd::sharding {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast };
std::string_view name_of(Collective collective);

/// All calls of one kind, for one purpose.
struct Sent {
  std::string what;  ///< "parameters", "gradients", "verdict", ...
  Collective collective = Collective::kAllGather;
  DType dtype = DType::kF32;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< sent by the rank in all of them

  bool operator==(const Sent&) const = default;
};

class Traffic {
 public:
  explicit Traffic(int world_size) : world_size_(world_size) {}

  /// `calls` calls on `full_numel` elements each. A broadcast of which this rank isn't the root is
  /// a call that sends nothing.
  void add(const std::string& what, Collective collective, DType dtype, std::int64_t full_numel,
           std::int64_t calls = 1);
  void add_received(const std::string& what, DType dtype);
  void add(const Traffic& other);

  const std::vector<Sent>& sent() const { return sent_; }
  std::int64_t total_bytes() const;

 private:
  Sent& line(const std::string& what, Collective collective, DType dtype);

  int world_size_;
  std::vector<Sent> sent_;  ///< in the order in which they were first added
};

}  // namespace sherd::sharding
