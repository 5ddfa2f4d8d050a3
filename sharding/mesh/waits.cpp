#include "sharding/mesh/waits.h"

#include <algorithm>

namespace sherd::sharding {

std::size_t wait_kind(std::string_view axis) {
  const auto found = std::ranges::find(kWaitAxes, axis);
  return found == kWaitAxes.end() ? kNoAxis
                                  : static_cast<std::size_t>(found - kWaitAxes.begin()) + 1;
}

std::size_t wait_kind(const Mesh& mesh, const AxisSet& axes) {
  AxisSet several;
  for (const std::string& axis : axes) {
    if (mesh.degree(axis) > 1) several.insert(axis);
  }
  // Experts' rows count for the expert axis; the ZeRO group that contains it, as shards.
  if (several == AxisSet{std::string(kExpertAxis)} && axes.size() > 1) return wait_kind(kShardAxis);
  if (several.size() == 1) return wait_kind(*several.begin());
  const bool within_zero_group = several.size() > 1 && std::ranges::includes(zero_axes(), several);
  return within_zero_group ? wait_kind(kShardAxis) : kNoAxis;
}

void Marks::record(Stream& stream, std::size_t kind) {
  if (recorded_ == events_.size()) events_.push_back(stream.make_event());
  Event& event = *events_[recorded_++];
  event.counts_as = kind;
  stream.record(event);
}

void Marks::wait(Stream& stream, std::size_t count) {
  for (; waited_ < count; ++waited_) stream.wait(*events_[waited_]);
}

}  // namespace sherd::sharding
