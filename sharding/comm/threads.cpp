#include "sharding/comm/threads.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "kernels/pointwise.h"

namespace sherd::sharding {
namespace {

// What a rank brings to a meeting. Everything but `data` must agree over ranks.
struct Contribution {
  const char* collective = "";
  std::string what;
  Tensor data;
  int root = 0;

  bool agrees(const Contribution& other) const {
    return std::strcmp(collective, other.collective) == 0 && what == other.what &&
           data.dtype == other.data.dtype && data.numel == other.data.numel && root == other.root;
  }
  std::string text() const {
    const bool rooted = std::strcmp(collective, "broadcast") == 0;
    return fmt::format("{} of {} ({} {}){}", collective, what, data.numel, name_of(data.dtype),
                       rooted ? fmt::format(" from rank {}", root) : "");
  }
};

// The place where ranks meet. `meeting_` counts completed meetings, so that a fast rank that comes
// for the next one is not mistaken for a slow one of this.
class MeetingPlace {
 public:
  MeetingPlace(int world_size, std::chrono::milliseconds timeout)
      : timeout_(timeout), brought_(world_size), here_(world_size, false) {}

  int world_size() const { return static_cast<int>(brought_.size()); }
  const Contribution& brought_by(int rank) const { return brought_[rank]; }

  /// Opens a collective: every rank's contribution can be read until the next meeting.
  void bring(int rank, Contribution contribution) {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    brought_[rank] = std::move(contribution);
    meet(rank, lock, /*opening=*/true);
  }
  /// Meets again inside the collective that the last `bring` opened. Whoever was there then comes
  /// here, and none leaves early: only `bring` throws. A rank that saw an abort here and left would
  /// free memory that others still read, and miss the collective's next meeting, for which a rank
  /// that had passed before the abort would wait for ever. An abort stops the next collective.
  void meet_again(int rank) {
    std::unique_lock lock(mutex_);
    meet(rank, lock, /*opening=*/false);
  }
  void abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    abort_locked(reason);
  }

 private:
  void meet(int rank, std::unique_lock<std::mutex>& lock, bool opening) {
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

  std::string timeout_message(int rank) const {
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

  void check_agreement() {
    for (int r = 1; r < world_size(); ++r) {
      if (brought_[r].agrees(brought_[0])) continue;
      abort_locked(
          fmt::format("rank 0 called {} while rank {} called {}: ranks must follow one schedule",
                      brought_[0].text(), r, brought_[r].text()));
      throw_if_aborted();
    }
  }

  void abort_locked(const std::string& reason) {
    if (!abort_reason_.empty()) return;
    abort_reason_ = reason.empty() ? "a rank stopped" : reason;
    all_here_.notify_all();
  }
  void throw_if_aborted() const {
    if (!abort_reason_.empty()) throw PeerError("{}", abort_reason_);
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<Contribution> brought_;
  std::vector<char> here_;
  int num_here_ = 0;
  std::uint64_t meeting_ = 0;
  std::string abort_reason_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<MeetingPlace> place, int rank)
      : place_(std::move(place)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return place_->world_size(); }

  void all_gather(Stream& stream, const std::string& what, Tensor full) override {
    check_divides(full, what);
    stream.run("all_gather " + what, [this, what, full] {
      place_->bring(rank_, {"all_gather", what, full});
      copy_other_slices(full);
      place_->meet_again(rank_);
    });
  }

  void reduce_scatter(Stream& stream, const std::string& what, Tensor full, Tensor out) override {
    check_divides(full, what);
    CHECK(out.numel * world_size() == full.numel && out.dtype == full.dtype,
          "reduce_scatter of {}: {} elements into {}", what, full.numel, out.numel);
    stream.run("reduce_scatter " + what, [this, what, full, out] {
      place_->bring(rank_, {"reduce_scatter", what, full});
      sum_slice(rank_, out);
      place_->meet_again(rank_);
    });
  }

  void all_reduce(Stream& stream, const std::string& what, Tensor full) override {
    check_divides(full, what);
    stream.run("all_reduce " + what, [this, what, full] {
      place_->bring(rank_, {"all_reduce", what, full});
      // Nobody else reads this rank's slice of this rank's buffer, so it can take the sum.
      sum_slice(rank_, slice(full, rank_));
      place_->meet_again(rank_);
      copy_other_slices(full);
      place_->meet_again(rank_);
    });
  }

  void broadcast(Stream& stream, const std::string& what, Tensor data, int root) override {
    CHECK(root >= 0 && root < world_size(), "broadcast from rank {}", root);
    stream.run("broadcast " + what, [this, what, data, root] {
      place_->bring(rank_, {"broadcast", what, data, root});
      if (rank_ != root) copy(place_->brought_by(root).data, data);
      place_->meet_again(rank_);
    });
  }

  void barrier(Stream& stream, const std::string& what) override {
    stream.run("barrier " + what, [this, what] { place_->bring(rank_, {"barrier", what, {}}); });
  }

  void abort(const std::string& reason) override { place_->abort(reason); }

 private:
  void check_divides(const Tensor& full, const std::string& what) const {
    CHECK(full.numel % world_size() == 0, "{}: {} elements on {} ranks", what, full.numel,
          world_size());
  }
  Tensor slice(const Tensor& full, int rank) const {
    const std::int64_t count = full.numel / world_size();
    return full.part(rank * count, count);
  }
  static void copy(ConstTensor from, Tensor to) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(to.bytes()));
  }
  void copy_other_slices(Tensor full) const {
    for (int offset = 1; offset < world_size(); ++offset) {
      const int owner = (rank_ + offset) % world_size();  // each rank starts elsewhere
      copy(slice(place_->brought_by(owner).data, owner), slice(full, owner));
    }
  }
  void sum_slice(int owner, Tensor out) {
    inputs_.clear();
    for (int r = 0; r < world_size(); ++r) {
      inputs_.push_back(slice(place_->brought_by(r).data, owner));
    }
    kernels::sum_in_order_on_host(inputs_.data(), world_size(), out);
  }

  std::shared_ptr<MeetingPlace> place_;
  const int rank_;
  std::vector<ConstTensor> inputs_;  // touched by one stream at a time
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int world_size, std::chrono::milliseconds timeout) {
  CHECK(world_size >= 1, "a world of {} ranks", world_size);
  auto place = std::make_shared<MeetingPlace>(world_size, timeout);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(place, rank));
  }
  return communicators;
}

}  // namespace sherd::sharding
