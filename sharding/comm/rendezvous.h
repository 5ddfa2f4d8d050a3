/// Where the ranks of a world find one another before they can communicate.
///
/// A rank joins a group by name and gets its own communicator in it, without touching any other
/// rank's objects; so ranks may be threads, processes or machines. Every member joins each of its
/// groups once; two ranks join the groups that they have in common in the same order.
///
/// Errors   PeerError if the world was aborted, or if the others don't come within the deadline
///          (where joining waits for them).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/link_bytes.h"
#include "sharding/comm/communicator.h"

namespace sherd::sharding {

inline constexpr std::chrono::seconds kDefaultPeerTimeout{600};

/// A group of ranks, as one of them sees it.
struct Group {
  std::string name;        ///< the same for all members, and no other group's
  std::vector<int> ranks;  ///< of the world, ascending
  int index = 0;           ///< this rank's place among them: its number in the communicator
  /// Where others' contributions may wait to be added (staging_bytes of the kind); empty: a kind that
  /// wants it takes it from the heap. Only one of a rank's communicators at a time may reduce there.
  Tensor staging{};

  int size() const { return static_cast<int>(ranks.size()); }
  int world_rank() const { return ranks[static_cast<std::size_t>(index)]; }
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// This rank's communicator in `group`. May wait for the other members. Any thread may call it.
  virtual std::unique_ptr<Communicator> join(const Group& group) = 0;

  /// What rank `rank` of this process has sent since it joined its first group, of tensors alone; none where it isn't
  /// known (NCCL) or nothing is sent (threads).
  virtual std::optional<LinkBytes> sent_by(int /*rank*/) const { return {}; }

  /// The world ends: whoever waits here or in any communicator that was joined here, or comes
  /// later, gets PeerError(reason). The first reason stays. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sherd::sharding
