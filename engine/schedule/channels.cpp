#include "engine/schedule/channels.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::schedule {

ChannelId channel_of(const Action& action, const ChunkLayout& layout, ChannelsBy by) {
  SHERD_CHECK(is_send(action.kind) || is_receive(action.kind), "{} is no message", text_of(action));
  const int chunk = action.chunk;
  ChannelId id{ChannelsBy::kBoundary, chunk, chunk};
  switch (action.kind) {
    case ActionKind::kSendActivations:
      id.to = chunk + 1;
      break;
    case ActionKind::kReceiveActivations:
      id.from = chunk - 1;
      break;
    case ActionKind::kSendGradients:
      id.to = chunk - 1;
      break;
    default:
      id.from = chunk + 1;
  }
  if (by == ChannelsBy::kRankPair) id = {by, layout.rank_of(id.from), layout.rank_of(id.to)};
  return id;
}

// Two of each chunk, or of each rank: to the one after it, and to the one before it. Numbers start
// at -1, since a list that wasn't validated may name the chunk before the first.
std::size_t index_of(const ChannelId& channel, const ChunkLayout& layout) {
  const auto [by, from, to] = channel;
  if (by == ChannelsBy::kBoundary) {
    return static_cast<std::size_t>(2 * (std::min(from, to) + 1) + (from < to ? 0 : 1));
  }
  const bool to_next = (to - from + layout.num_ranks) % layout.num_ranks == 1;
  return static_cast<std::size_t>(2 * (from + 1) + (to_next ? 0 : 1));
}

std::size_t num_channels(const ChunkLayout& layout) {
  return static_cast<std::size_t>(2 * (layout.num_chunks() + 2));
}

Action receive_of(const Action& send) {
  if (send.kind == ActionKind::kSendActivations) {
    return {ActionKind::kReceiveActivations, send.chunk + 1, send.micro_batch};
  }
  SHERD_CHECK(send.kind == ActionKind::kSendGradients, "{} is no send", text_of(send));
  return {ActionKind::kReceiveGradients, send.chunk - 1, send.micro_batch};
}

}  // namespace sherd::schedule
