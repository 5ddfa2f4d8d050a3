/// Attributes each wait of the compute stream to the mesh axis whose ranks communicate.
///
///   a group along one axis that has several ranks     that axis
///   several axes of the ZeRO group, or it has         shard
///     several ranks along the expert axis alone
///   any other group                                   none: exchanges between all ranks of a mesh
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "sharding/mesh/mesh.h"

namespace sherd::sharding {

/// The axes for which waits are counted, from the outermost to the innermost.
inline constexpr std::array kWaitAxes{kPipelineAxis, kReplicateAxis, kExpertAxis,
                                      kShardAxis,    kContextAxis,   kTensorAxis};
inline constexpr std::size_t kNoAxis = 0;
static_assert(kWaitAxes.size() + 1 < Event::kMostKinds);  // the last: core/offload_home.h

/// The number of an axis in Event::counts_as: its position in kWaitAxes, from 1; or kNoAxis.
std::size_t wait_kind(std::string_view axis);
/// The kind for communication in a group along `axes`.
std::size_t wait_kind(const Mesh& mesh, const AxisSet& axes);

/// An event for which waiting counts as `kind`.
inline std::unique_ptr<Event> counted(std::unique_ptr<Event> event, std::size_t kind) {
  event->counts_as = kind;
  return event;
}

/// Points of one stream that another stream waits for in order. Each part of a long wait is
/// attributed to the work done in it.
class Marks {
 public:
  /// The work of `stream` since the previous mark counts as `kind`.
  void record(Stream& stream, std::size_t kind);
  std::size_t count() const { return recorded_; }
  /// `stream` waits for those of the first `count` marks that it hasn't waited for yet.
  void wait(Stream& stream, std::size_t count);
  /// All marks have been waited for.
  void forget() { recorded_ = waited_ = 0; }

 private:
  std::vector<std::unique_ptr<Event>> events_;
  std::size_t recorded_ = 0, waited_ = 0;
};

}  // namespace sherd::sharding
