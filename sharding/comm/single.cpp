#include "sharding/comm/single.h"

#include <mutex>

#include "core/error.h"
#include "sharding/comm/slices.h"

namespace sherd::sharding {
namespace {

// Whether the world has ended: what the communicators of one rendezvous share.
class Ending {
 public:
  void set(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason.empty() ? "a rank stopped" : reason;
  }
  void throw_if_set() {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw PeerError("{}", reason_);
  }

 private:
  std::mutex mutex_;
  std::string reason_;
};

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::shared_ptr<Ending> ending) : ending_(std::move(ending)) {}

  int rank() const override { return 0; }
  int world_size() const override { return 1; }

  void all_gather(Stream& stream, const std::string& label, Tensor) override {
    pass(stream, "all_gather", label);
  }
  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    SHERD_CHECK(full.numel == out.numel, "reduce_scatter of {}", label);
    ending_->throw_if_set();
    if (addends.onto_out || full.dtype != out.dtype) {
      add_or_cast(stream, full, out, addends.onto_out);
    } else if (full.data != out.data) {
      stream.copy(full.data, out.data, full.bytes());
    }
  }
  void all_reduce(Stream& stream, const std::string& label, Tensor, int) override {
    pass(stream, "all_reduce", label);
  }
  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    check_all_to_all(*this, full, out, label);
    ending_->throw_if_set();
    stream.copy(full.data, out.data, full.bytes());
  }
  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    check_all_to_all_v(*this, sends, receives, from, to, label);
    ending_->throw_if_set();
    const Tensor own = from.part(sends[0].first, sends[0].count);
    stream.copy(own.data, to.part(receives[0].first, receives[0].count).data, own.bytes());
  }
  void broadcast(Stream& stream, const std::string& label, Tensor, int root) override {
    SHERD_CHECK(root == 0, "broadcast from rank {} in a world of 1", root);
    pass(stream, "broadcast", label);
  }
  void barrier(Stream& stream, const std::string& label) override {
    pass(stream, "barrier", label);
  }
  void abort(const std::string& reason) override { ending_->set(reason); }

 private:
  void pass(Stream&, const char*, const std::string&) { ending_->throw_if_set(); }

  const std::shared_ptr<Ending> ending_;
};

class SingleRendezvous final : public Rendezvous {
 public:
  std::unique_ptr<Communicator> join(const Group& group) override {
    SHERD_CHECK(group.size() == 1, "a group of {} ranks in a world of 1", group.size());
    return std::make_unique<SingleCommunicator>(ending_);
  }
  void abort(const std::string& reason) override { ending_->set(reason); }

 private:
  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>(std::make_shared<Ending>());
}

std::shared_ptr<Rendezvous> make_single_rendezvous() {
  return std::make_shared<SingleRendezvous>();
}

}  // namespace sherd::sharding
