#include "sharding/comm/meeting_place.h"

#include <algorithm>
#include <cstring>

#include "core/awake_time.h"

namespace sherd::sharding {

bool Contribution::agrees(const Contribution& other) const {
  return std::strcmp(collective, other.collective) == 0 && label == other.label &&
         data.dtype == other.data.dtype && data.numel == other.data.numel && root == other.root;
}

std::string Contribution::text() const {
  const bool rooted = std::strcmp(collective, "broadcast") == 0;
  return fmt::format("{} of {} ({} {}){}", collective, label, data.numel, name_of(data.dtype),
                     rooted ? fmt::format(" from rank {}", root) : "");
}

std::string disagreement_text(int rank, const Contribution& call, int other,
                              const Contribution& others_call) {
  return disagreement_text(rank, call.text(), other, others_call.text());
}

std::string disagreement_text(int rank, const std::string& call, int other,
                              const std::string& others_call) {
  return fmt::format("rank {} called {} while rank {} called {}: ranks must follow one schedule",
                     rank, call, other, others_call);
}

std::string waited_text(int rank, std::chrono::milliseconds timeout,
                        const std::vector<int>& missing, const Contribution& call) {
  std::string names;
  for (const int r : missing) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", r);
  return fmt::format("rank {} waited {} s for {} in {} of {}. Read rank {}'s log first.", rank,
                     std::chrono::duration<double>(timeout).count(), names, call.collective,
                     call.label, missing.front());
}

MeetingPlace::MeetingPlace(std::vector<int> ranks, std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)),
      timeout_(timeout),
      brought_(ranks_.size()),
      here_(ranks_.size(), false) {
  SHERD_CHECK(!ranks_.empty(), "a group of no ranks");
}

void MeetingPlace::bring(int rank, Contribution contribution) {
  std::unique_lock lock(mutex_);
  throw_if_aborted();
  brought_[rank] = std::move(contribution);
  meet(rank, lock, /*opening=*/true);
}

void MeetingPlace::meet_again(int rank) {
  std::unique_lock lock(mutex_);
  meet(rank, lock, /*opening=*/false);
}

void MeetingPlace::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  abort_locked(reason);
}

void MeetingPlace::meet(int rank, std::unique_lock<std::mutex>& lock, bool opening) {
  here_[rank] = true;
  if (++num_here_ == world_size()) {
    if (opening) check_agreement();
    num_here_ = 0;
    std::fill(here_.begin(), here_.end(), false);
    ++meeting_;
    all_here_.notify_all();
    return;
  }
  const std::uint64_t meeting = meeting_;
  if (!opening) {
    all_here_.wait(lock, [&] { return meeting_ != meeting; });
    return;
  }
  const bool in_time = wait_awake(all_here_, lock, timeout_,
                                  [&] { return meeting_ != meeting || !abort_reason_.empty(); });
  if (meeting_ != meeting) return;  // complete, even if someone aborted right after
  if (!in_time) abort_locked(timeout_message(rank));
  throw_if_aborted();
}

std::string MeetingPlace::timeout_message(int rank) const {
  std::vector<int> missing;
  for (int r = 0; r < world_size(); ++r) {
    if (!here_[r]) missing.push_back(ranks_[r]);
  }
  return waited_text(ranks_[rank], timeout_, missing, brought_[rank]);
}

void MeetingPlace::check_agreement() {
  for (int r = 1; r < world_size(); ++r) {
    if (brought_[r].agrees(brought_[0])) continue;
    abort_locked(disagreement_text(ranks_[0], brought_[0], ranks_[r], brought_[r]));
    throw_if_aborted();
  }
}

void MeetingPlace::abort_locked(const std::string& reason) {
  if (!abort_reason_.empty()) return;
  abort_reason_ = reason.empty() ? "a rank stopped" : reason;
  all_here_.notify_all();
}

void MeetingPlace::throw_if_aborted() const {
  if (!abort_reason_.empty()) throw PeerError("{}", abort_reason_);
}

}  // namespace sherd::sharding
