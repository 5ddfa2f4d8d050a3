#include "sharding/comm/shared_device.h"

#include <exception>

#include "core/cuda_device.h"
#include "kernels/cuda/forms.h"
#include "sharding/comm/meetings.h"
#include "sharding/comm/slices.h"

namespace sherd::sharding {
namespace {

// If something fails inside a collective, its meetings are still held, because the others can't
// leave them. The error is reported at the end.
class Attempts {
 public:
  template <class Work>
  void operator()(Work&& work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

class SharedDeviceCommunicator final : public Communicator {
 public:
  SharedDeviceCommunicator(std::shared_ptr<MeetingPlace> place, int rank)
      : place_(std::move(place)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return place_->world_size(); }

  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    check_divides(*this, full, label);
    collect(stream, {"all_gather", label, full}, [&] { copy_other_slices(stream, full); });
  }

  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    check_reduce_scatter(*this, full, out, label);
    check_no_tree(label, addends.tree);
    collect(stream, {"reduce_scatter", reduction_label(*this, label, addends), full},
            [&] { sum_slice(stream, out, addends); });
  }

  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    check_divides(*this, full, label);
    check_no_tree(label, tree);
    open(stream, {"all_reduce", label, full});
    Attempts attempt;
    attempt([&] {
      wait_for(stream, &Contribution::ready);
      // Nobody else reads this rank's slice of this rank's buffer, so it can take the sum.
      sum_slice(stream, slice(full, rank_), {});
      stream.record(*summed_);
    });
    place_->meet_again(rank_);
    attempt([&] {
      wait_for(stream, &Contribution::summed);
      copy_other_slices(stream, full);
    });
    close(stream, attempt);
  }

  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    check_all_to_all(*this, full, out, label);
    collect(stream, {"all_to_all", label, full}, [&] {
      for (int offset = 0; offset < world_size(); ++offset) {
        const int peer = (rank_ + offset) % world_size();
        copy(stream, slice(place_->brought_by(peer).data, rank_), slice(out, peer));
      }
    });
  }

  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    check_all_to_all_v(*this, sends, receives, from, to, label);
    collect(stream, {.collective = "all_to_all_v", .label = label, .data = from, .sends = &sends},
            [&] {
              for (int offset = 0; offset < world_size(); ++offset) {
                const int peer = (rank_ + offset) % world_size();
                const ElementRange expected = receives[static_cast<std::size_t>(peer)];
                copy(stream, brought_for(place_->brought_by(peer), rank_, expected),
                     to.part(expected.first, expected.count));
              }
            });
  }

  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    check_root(*this, root);
    collect(stream, {"broadcast", label, data, root}, [&] {
      if (rank_ != root) copy(stream, place_->brought_by(root).data, data);
    });
  }

  void barrier(Stream& stream, const std::string& label) override {
    collect(stream, {"barrier", label}, [] {});
  }

  bool calls_meet() const override { return true; }
  void abort(const std::string& reason) override { place_->abort(reason); }

 private:
  Tensor slice(const Tensor& full, int rank) const { return slice_of(*this, full, rank); }
  // An event is recorded again only when all have enqueued the wait for its last point. The
  // meetings of the previous collective ensure that.
  void open(Stream& stream, Contribution contribution) {
    if (!ready_) {
      ready_ = stream.make_event();
      summed_ = stream.make_event();
      done_ = stream.make_event();
    }
    stream.record(*ready_);
    contribution.ready = ready_.get();
    contribution.summed = summed_.get();
    contribution.done = done_.get();
    place_->bring(rank_, std::move(contribution));
  }
  void close(Stream& stream, Attempts& attempt) {
    attempt([&] { stream.record(*done_); });
    place_->meet_again(rank_);
    attempt([&] { wait_for(stream, &Contribution::done); });
    // Until all have enqueued that wait, nobody may record the event again or destroy it.
    place_->meet_again(rank_);
    attempt.rethrow();
  }
  template <class Work>
  void collect(Stream& stream, Contribution contribution, Work&& work) {
    open(stream, std::move(contribution));
    Attempts attempt;
    attempt([&] {
      wait_for(stream, &Contribution::ready);
      work();
    });
    close(stream, attempt);
  }
  void wait_for(Stream& stream, const Event* Contribution::*which) const {
    for (int r = 0; r < world_size(); ++r) {
      if (r != rank_) stream.wait(*(place_->brought_by(r).*which));
    }
  }

  static void copy(Stream& stream, const ConstTensor& from, const Tensor& to) {
    stream.copy(from.data, to.data, to.bytes());
  }
  void copy_other_slices(Stream& stream, const Tensor& full) const {
    for (int offset = 1; offset < world_size(); ++offset) {
      const int owner = (rank_ + offset) % world_size();
      copy(stream, slice(place_->brought_by(owner).data, owner), slice(full, owner));
    }
  }
  void sum_slice(Stream& stream, const Tensor& out, const Addends& addends) {
    inputs_.clear();
    for (int r = 0; r < world_size(); ++r) {
      if (addends.contains(r)) inputs_.push_back(slice(place_->brought_by(r).data, rank_));
    }
    kernels::cuda::sum_in_order(stream, inputs_.data(), static_cast<int>(inputs_.size()), out,
                                addends.onto_out);
  }

  std::shared_ptr<MeetingPlace> place_;
  const int rank_;
  std::unique_ptr<Event> ready_, summed_, done_;
  std::vector<ConstTensor> inputs_;
};

class SharedDeviceRendezvous final : public Rendezvous {
 public:
  explicit SharedDeviceRendezvous(std::chrono::milliseconds timeout) : meetings_(timeout) {}

  std::unique_ptr<Communicator> join(const Group& group) override {
    if (group.size() > kernels::cuda::kMaxSumInputs) {
      throw UsageError("{} ranks share a GPU; at most {} can", group.size(),
                       kernels::cuda::kMaxSumInputs);
    }
    return std::make_unique<SharedDeviceCommunicator>(meetings_.place_of(group), group.index);
  }
  void abort(const std::string& reason) override { meetings_.abort(reason); }

 private:
  Meetings meetings_;
};

}  // namespace

std::shared_ptr<Rendezvous> make_shared_device_rendezvous(std::chrono::milliseconds timeout) {
  return std::make_shared<SharedDeviceRendezvous>(timeout);
}

}  // namespace sherd::sharding
