#include <fmt/core.h>

#include "core/trace.h"
#include "engine/schedule/picture.h"

namespace sherd::schedule {
namespace {

std::string stream_of(const Action& action, const ChunkLayout& layout) {
  if (is_compute(action.kind)) return "compute";
  if (is_receive(action.kind)) return "receive";
  if (is_send(action.kind)) {
    const ChannelId channel = channel_of(action, layout, ChannelsBy::kBoundary);
    return fmt::format("send {} to {}", channel.from, channel.to);
  }
  return action.kind == ActionKind::kReduce ? "reduce" : "gather";
}

}  // namespace

std::string chrome_trace(const Schedule& schedule, const Simulation& run) {
  Trace trace;
  trace.start();
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const Span& span = run.spans[rank][i];
      if (span.end == span.begin) continue;
      trace.add(static_cast<int>(rank), stream_of(action, schedule.layout), text_of(action),
                Clock::time_point(span.begin), Clock::time_point(span.end));
    }
  }
  return trace.to_chrome_json();
}

}  // namespace sherd::schedule
