/// Where ranks of one process meet for a collective. Every rank brings its data, and can read what
/// the others brought until the next collective.
///
/// Errors   PeerError with the reason if a rank aborted, waited longer than the timeout, or brought
///          something that doesn't match. Only `bring` throws.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::sharding {

/// What a rank brings to a meeting. Collective, name, type, count and root must be equal on all
/// ranks.
struct Contribution {
  const char* collective = "";
  std::string label{};
  Tensor data{};
  int root = 0;
  /// For all_to_all_v: what of `data` goes to each rank.
  const std::vector<ElementRange>* sends = nullptr;
  /// For ranks that share a GPU (sharding/comm/shared_device.h): when `data` can be read, when the
  /// rank has made its sum, and when it has read the others' data.
  const Event *ready = nullptr, *summed = nullptr, *done = nullptr;

  bool agrees(const Contribution& other) const;
  std::string text() const;
};

/// "rank 0 called ... while rank 3 called ...".
std::string disagreement_text(int rank, const Contribution& call, int other,
                              const Contribution& others_call);
/// The same, with the calls as text.
std::string disagreement_text(int rank, const std::string& call, int other,
                              const std::string& others_call);
/// "rank 0 waited 30 s for rank 3 in reduce_scatter of block.7. Read rank 3's log first."
std::string waited_text(int rank, std::chrono::milliseconds timeout,
                        const std::vector<int>& missing, const Contribution& call);

/// Counts completed meetings, so that a fast rank that comes for the next one is not mistaken for a
/// slow rank of this one.
class MeetingPlace {
 public:
  /// For the members of a group; `ranks` are their world ranks, for messages. Everywhere else a
  /// member is its index in that list.
  MeetingPlace(std::vector<int> ranks, std::chrono::milliseconds timeout);

  const std::vector<int>& ranks() const { return ranks_; }

  int world_size() const { return static_cast<int>(brought_.size()); }
  const Contribution& brought_by(int rank) const { return brought_[rank]; }

  /// Opens a collective: every rank's contribution can be read until the next `bring`.
  void bring(int rank, Contribution contribution);
  /// Meets again inside the collective that the last `bring` opened. Every rank that was there then
  /// comes here, and none leaves early: only `bring` throws. A rank that left here on an abort
  /// would free memory that others still read. It would also miss the collective's next meeting,
  /// where a rank that had passed before the abort would wait forever. An abort stops the next
  /// collective.
  void meet_again(int rank);
  void abort(const std::string& reason);

 private:
  void meet(int rank, std::unique_lock<std::mutex>& lock, bool opening);
  std::string timeout_message(int rank) const;
  void check_agreement();
  void abort_locked(const std::string& reason);
  void throw_if_aborted() const;

  const std::vector<int> ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<Contribution> brought_;
  std::vector<char> here_;
  int num_here_ = 0;
  std::uint64_t meeting_ = 0;
  std::string abort_reason_;
};

}  // namespace sherd::sharding
