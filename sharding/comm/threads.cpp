#include "sharding/comm/threads.h"

#include <cstring>

#include "kernels/pointwise.h"
#include "sharding/comm/meetings.h"
#include "sharding/comm/slices.h"

namespace sherd::sharding {
namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<MeetingPlace> place, int rank)
      : place_(std::move(place)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return place_->world_size(); }

  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    check_divides(*this, full, label);
    stream.run("all_gather " + label, [this, label, full] {
      place_->bring(rank_, {"all_gather", label, full});
      copy_other_slices(full);
      place_->meet_again(rank_);
    });
  }

  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    check_reduce_scatter(*this, full, out, label);
    stream.run("reduce_scatter " + label, [this, label, full, out, addends] {
      place_->bring(rank_, {"reduce_scatter", reduction_label(*this, label, addends), full});
      sum_slice(out, addends);
      place_->meet_again(rank_);
    });
  }

  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    check_divides(*this, full, label);
    stream.run("all_reduce " + label, [this, what = sum_label(*this, label, tree), full, tree] {
      place_->bring(rank_, {"all_reduce", what, full});
      // Nobody else reads this rank's slice of this rank's buffer, so it can take the sum.
      sum_slice(slice(full, rank_), {.tree = tree});
      place_->meet_again(rank_);
      copy_other_slices(full);
      place_->meet_again(rank_);
    });
  }

  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    check_all_to_all(*this, full, out, label);
    stream.run("all_to_all " + label, [this, label, full, out] {
      place_->bring(rank_, {"all_to_all", label, full});
      for (int offset = 0; offset < world_size(); ++offset) {
        const int peer = (rank_ + offset) % world_size();  // each rank starts elsewhere
        copy(slice(place_->brought_by(peer).data, rank_), slice(out, peer));
      }
      place_->meet_again(rank_);
    });
  }

  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    check_all_to_all_v(*this, sends, receives, from, to, label);
    stream.run("all_to_all_v " + label, [this, label, from, sends, to, receives] {
      place_->bring(rank_,
                    {.collective = "all_to_all_v", .label = label, .data = from, .sends = &sends});
      for (int offset = 0; offset < world_size(); ++offset) {
        const int peer = (rank_ + offset) % world_size();  // each rank starts elsewhere
        const ElementRange expected = receives[static_cast<std::size_t>(peer)];
        copy(brought_for(place_->brought_by(peer), rank_, expected),
             to.part(expected.first, expected.count));
      }
      place_->meet_again(rank_);
    });
  }

  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    check_root(*this, root);
    stream.run("broadcast " + label, [this, label, data, root] {
      place_->bring(rank_, {"broadcast", label, data, root});
      if (rank_ != root) copy(place_->brought_by(root).data, data);
      place_->meet_again(rank_);
    });
  }

  void barrier(Stream& stream, const std::string& label) override {
    stream.run("barrier " + label, [this, label] { place_->bring(rank_, {"barrier", label}); });
  }

  void abort(const std::string& reason) override { place_->abort(reason); }

 private:
  Tensor slice(const Tensor& full, int rank) const { return slice_of(*this, full, rank); }
  static void copy(ConstTensor from, Tensor to) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(to.bytes()));
  }
  void copy_other_slices(Tensor full) const {
    for (int offset = 1; offset < world_size(); ++offset) {
      const int owner = (rank_ + offset) % world_size();  // each rank starts elsewhere
      copy(slice(place_->brought_by(owner).data, owner), slice(full, owner));
    }
  }
  void sum_slice(Tensor out, const Addends& addends) {
    inputs_.clear();
    for (int r = 0; r < world_size(); ++r) {
      if (addends.contains(r)) inputs_.push_back(slice(place_->brought_by(r).data, rank_));
    }
    add_up_on_host(inputs_, out, addends);
  }

  std::shared_ptr<MeetingPlace> place_;
  const int rank_;
  std::vector<ConstTensor> inputs_;  // touched by one stream at a time
};

class ThreadRendezvous final : public Rendezvous {
 public:
  explicit ThreadRendezvous(std::chrono::milliseconds timeout) : meetings_(timeout) {}

  std::unique_ptr<Communicator> join(const Group& group) override {
    return std::make_unique<ThreadCommunicator>(meetings_.place_of(group), group.index);
  }
  void abort(const std::string& reason) override { meetings_.abort(reason); }

 private:
  Meetings meetings_;
};

}  // namespace

std::shared_ptr<Rendezvous> make_thread_rendezvous(std::chrono::milliseconds timeout) {
  return std::make_shared<ThreadRendezvous>(timeout);
}

}  // namespace sherd::sharding
