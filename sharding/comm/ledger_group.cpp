#include "sharding/comm/ledger_group.h"

#include "core/ledger.h"
#include "sharding/comm/slices.h"

namespace sherd::sharding {
namespace {

class LedgerCommunicator final : public Communicator {
 public:
  explicit LedgerCommunicator(const Group& group) : index_(group.index), ranks_(group.ranks) {}

  int rank() const override { return index_; }
  int world_size() const override { return static_cast<int>(ranks_.size()); }

  void all_gather(Stream& stream, const std::string&, Tensor full) override {
    note(stream, "all_gather", full);
  }
  // What NCCL's communicator does afterwards, as in sharding/comm/nccl.cpp.
  void reduce_scatter(Stream& stream, const std::string&, Tensor full, Tensor out,
                      const Addends& addends) override {
    note(stream, "reduce_scatter", full);
    const Tensor sum = full.part(index_ * out.numel, out.numel);
    if (addends.onto_out || full.dtype != out.dtype) {
      add_or_cast(stream, sum, out, addends.onto_out);
    } else if (world_size() == 1 && full.data != out.data) {
      stream.copy(full.data, out.data, full.bytes());
    }
  }
  void all_reduce(Stream& stream, const std::string&, Tensor full, int) override {
    note(stream, "all_reduce", full);
  }
  void all_to_all(Stream& stream, const std::string&, Tensor full, Tensor) override {
    note(stream, "all_to_all", full);
  }
  void all_to_all_v(Stream& stream, const std::string&, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor,
                    const std::vector<ElementRange>&) override {
    std::int64_t numel = 0;
    for (const ElementRange& range : sends) numel += range.count;
    note(stream, "all_to_all_v", from.part(0, numel));
  }
  void broadcast(Stream& stream, const std::string&, Tensor data, int) override {
    note(stream, "broadcast", data);
  }
  void barrier(Stream& stream, const std::string&) override { note(stream, "barrier", {}); }
  void abort(const std::string&) override {}

 private:
  void note(Stream& stream, std::string_view collective, const Tensor& full) const {
    if (world_size() == 1) return;
    LedgerStream* ledger = ledger_stream(stream);
    SHERD_CHECK(ledger != nullptr, "{} on a stream that keeps no ledger", collective);
    ledger->add(Exchange{collective, full.bytes(), ranks_});
  }

  const int index_;
  const std::vector<int> ranks_;
};

class LedgerRendezvous final : public Rendezvous {
 public:
  std::unique_ptr<Communicator> join(const Group& group) override {
    return std::make_unique<LedgerCommunicator>(group);
  }
  void abort(const std::string&) override {}
};

}  // namespace

std::shared_ptr<Rendezvous> make_ledger_rendezvous() {
  return std::make_shared<LedgerRendezvous>();
}

}  // namespace sherd::sharding
