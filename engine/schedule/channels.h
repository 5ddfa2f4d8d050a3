/// The messages between pipeline ranks: the channel of each, and their order.
///
/// A channel is first in, first out, and holds one message per slot. A send needs a free slot; a
/// receive takes the oldest message and frees its slot. With 0 slots a send and its receive happen
/// at the same time.
///
/// Sherd's channels are one per (boundary, direction) with two slots; with these, no schedule of
/// generate.h deadlocks. A library that matches messages by the order of calls between two ranks
/// (NCCL's send and receive on one communicator) has one channel per pair of ranks and direction.
/// There, V-shaped schedules on 4 or more ranks deadlock, whatever the number of slots.
#pragma once

#include <compare>
#include <cstddef>

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

enum class ChannelsBy { kBoundary, kRankPair };

struct Channels {
  ChannelsBy by = ChannelsBy::kBoundary;
  int slots = 2;
};

/// A channel: the messages between two chunks in one direction, or all messages from one rank to
/// another.
struct ChannelId {
  ChannelsBy by = ChannelsBy::kBoundary;
  int from = 0, to = 0;  ///< chunks, or ranks

  auto operator<=>(const ChannelId&) const = default;
};

/// The channel of a send or receive.
ChannelId channel_of(const Action& action, const ChunkLayout& layout, ChannelsBy by);

/// Channels as indices of a vector: below `num_channels`.
std::size_t index_of(const ChannelId& channel, const ChunkLayout& layout);
std::size_t num_channels(const ChunkLayout& layout);

/// The receive that matches `send`.
Action receive_of(const Action& send);

}  // namespace sherd::schedule
