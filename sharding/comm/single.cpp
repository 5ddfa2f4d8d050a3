#include "sharding/comm/single.h"

#include <mutex>

#include "core/error.h"

namespace sherd::sharding {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }

  void all_gather(Stream& stream, const std::string& what, Tensor) override {
    pass(stream, "all_gather", what);
  }
  void reduce_scatter(Stream& stream, const std::string& what, Tensor full, Tensor out) override {
    CHECK(full.numel == out.numel && full.dtype == out.dtype, "reduce_scatter of {}", what);
    if (full.data == out.data) return pass(stream, "reduce_scatter", what);
    check_not_aborted();
    stream.copy(full.data, out.data, full.bytes());
  }
  void all_reduce(Stream& stream, const std::string& what, Tensor) override {
    pass(stream, "all_reduce", what);
  }
  void broadcast(Stream& stream, const std::string& what, Tensor, int root) override {
    CHECK(root == 0, "broadcast from rank {} in a world of 1", root);
    pass(stream, "broadcast", what);
  }
  void barrier(Stream& stream, const std::string& what) override { pass(stream, "barrier", what); }
  void abort(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
  }

 private:
  void pass(Stream&, const char*, const std::string&) { check_not_aborted(); }
  void check_not_aborted() {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw PeerError("{}", reason_);
  }
  std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace sherd::sharding
