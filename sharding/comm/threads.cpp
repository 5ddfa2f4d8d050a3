#include "sharding/comm/threads.h"

#include <cstring>

#include "kernels/pointwise.h"
#include "sharding/comm/meeting_place.h"

namespace sherd::sharding {
namespace {

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
    stream.run("barrier " + what, [this, what] { place_->bring(rank_, {"barrier", what}); });
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
