/// The messages between pipeline ranks: over which channel each goes, and in what order.
///
/// A channel is first in, first out, and holds as many messages as it has slots. A send needs a free
/// one; a receive takes the oldest message and frees its slot. With 0 slots a send and its receive
/// happen together.
///
/// Sherd's channels are one per (boundary, direction) with two slots, which no schedule of generate.h
/// blocks. A library that matches messages by the order of calls between two ranks (NCCL's send and
/// receive on one communicator) has one channel per pair of ranks and direction: there, V-shaped schedules
/// on 4 or more ranks wait for ever, whatever the number of slots.
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

/// A channel: what goes between two chunks in one direction, or all that goes from one rank to another.
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

/// The receive that takes what `send` sends.
Action receive_of(const Action& send);

}  // namespace sherd::schedule
