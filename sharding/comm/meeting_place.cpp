#include "sharding/comm/meeting_place.h"

#include <algorithm>
#include <cstring>

namespace sherd::sharding {

bool Contribution::agrees(const Contribution& other) const {
  return std::strcmp(collective, other.collective) == 0 && what == other.what &&
         data.dtype == other.data.dtype && data.numel == other.data.numel && root == other.root;
}

std::string Contribution::text() const {
  const bool rooted = std::strcmp(collective, "broadcast") == 0;
  return fmt::format("{} of {} ({} {}){}", collective, what, data.numel, name_of(data.dtype),
                     rooted ? fmt::format(" from rank {}", root) : "");
}

MeetingPlace::MeetingPlace(int world_size, std::chrono::milliseconds timeout)
    : timeout_(timeout), brought_(world_size), here_(world_size, false) {}

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
  const bool in_time = all_here_.wait_for(
      lock, timeout_, [&] { return meeting_ != meeting || !abort_reason_.empty(); });
  if (meeting_ != meeting) return;  // complete, even if someone aborted right after
  if (!in_time) abort_locked(timeout_message(rank));
  throw_if_aborted();
}

std::string MeetingPlace::timeout_message(int rank) const {
  std::string missing;
  int first_missing = -1;
  for (int r = 0; r < world_size(); ++r) {
    if (here_[r]) continue;
    if (first_missing < 0) first_missing = r;
    missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", r);
  }
  return fmt::format("rank {} waited {} s for {} in {} of {}. Read rank {}'s log first.", rank,
                     std::chrono::duration<double>(timeout_).count(), missing,
                     brought_[rank].collective, brought_[rank].what, first_missing);
}

void MeetingPlace::check_agreement() {
  for (int r = 1; r < world_size(); ++r) {
    if (brought_[r].agrees(brought_[0])) continue;
    abort_locked(
        fmt::format("rank 0 called {} while rank {} called {}: ranks must follow one schedule",
                    brought_[0].text(), r, brought_[r].text()));
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
