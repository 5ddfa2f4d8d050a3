/// Where the ranks of a world find one another before they can communicate.
///
/// A rank joins a group by name and gets its own communicator in it, without touching any other
/// rank's objects. So ranks may be threads, processes or machines. Every member joins each of its
/// groups once. Two ranks join the groups that they share in the same order.
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

/// A group of ranks, as one member sees it.
struct Group {
  std::string name;        ///< the same for all members, and no other group's
  std::vector<int> ranks;  ///< world ranks, ascending
  int index = 0;           ///< this rank's index among them: its number in the communicator
  /// Memory where others' contributions wait to be added (staging_bytes of the kind). If it is
  /// empty, kinds that need it take it from the heap. Only one of a rank's communicators at a time
  /// may reduce there.
  Tensor staging{};

  int size() const { return static_cast<int>(ranks.size()); }
  int world_rank() const { return ranks[static_cast<std::size_t>(index)]; }
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// This rank's communicator in `group`. May wait for the other members. Any thread may call it.
  virtual std::unique_ptr<Communicator> join(const Group& group) = 0;

  /// Tensor bytes that rank `rank` of this process has sent since it joined its first group. Empty
  /// where this isn't known (NCCL) or nothing is sent (threads).
  virtual std::optional<LinkBytes> sent_by(int /*rank*/) const { return {}; }

  /// Ends the world: every rank that waits here or in a communicator joined here, or comes later,
  /// gets PeerError(reason). The first reason is kept. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sherd::sharding
