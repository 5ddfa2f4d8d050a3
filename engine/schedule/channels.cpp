#include "engine/schedule/channels.h"

#include "core/error.h"

namespace sherd::schedule {

ChannelId channel_of(const Action& action, const ChunkLayout& layout, ChannelsBy by) {
  CHECK(is_send(action.kind) || is_receive(action.kind), "{} is no message", text_of(action));
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

Action receive_of(const Action& send) {
  if (send.kind == ActionKind::kSendActivations) {
    return {ActionKind::kReceiveActivations, send.chunk + 1, send.micro_batch};
  }
  CHECK(send.kind == ActionKind::kSendGradients, "{} is no send", text_of(send));
  return {ActionKind::kReceiveGradients, send.chunk - 1, send.micro_batch};
}

}  // namespace sherd::schedule
