#include "sharding/comm/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "core/cuda_device.h"
#include "core/error.h"
#include "core/thread.h"
#include "sharding/comm/nccl_group.h"
#include "sharding/comm/slices.h"

namespace sherd::sharding {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      SHERD_CHECK(false, "a sum of {}", name_of(dtype));
      __builtin_unreachable();
  }
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~NcclCommunicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int world_size() const override { return group_->size(); }

  // Bytes: any type.
  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    check_divides(*this, full, label);
    const auto bytes = static_cast<std::size_t>(full.bytes() / world_size());
    const char* mine =
        static_cast<const char*>(full.data) + bytes * static_cast<std::size_t>(rank_);
    run(stream, {"all_gather", label, full}, [&](ncclComm_t communicator) {
      return ncclAllGather(mine, full.data, bytes, ncclUint8, communicator, handle_of(stream));
    });
  }

  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    check_reduce_scatter(*this, full, out, label);
    check_no_tree(label, addends.tree);
    SHERD_CHECK(addends.num_ranks == 0, "NCCL adds all ranks: {}",
                reduction_label(*this, label, addends));
    const bool directly = !addends.onto_out && full.dtype == out.dtype;
    const Tensor sum = directly ? out : slice_of(*this, full, rank_);
    run(stream, {"reduce_scatter", reduction_label(*this, label, addends), full},
        [&](ncclComm_t communicator) {
          return ncclReduceScatter(full.data, sum.data, static_cast<std::size_t>(sum.numel),
                                   type_of(full.dtype), ncclSum, communicator, handle_of(stream));
        });
    if (!directly) add_or_cast(stream, sum, out, addends.onto_out);
  }

  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    check_divides(*this, full, label);
    check_no_tree(label, tree);
    run(stream, {"all_reduce", label, full}, [&](ncclComm_t communicator) {
      return ncclAllReduce(full.data, full.data, static_cast<std::size_t>(full.numel),
                           type_of(full.dtype), ncclSum, communicator, handle_of(stream));
    });
  }

  // Bytes: any type. One group of sends and receives is one kernel.
  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    check_all_to_all(*this, full, out, label);
    run(stream, {"all_to_all", label, full}, [&](ncclComm_t communicator) {
      ncclResult_t result = ncclGroupStart();
      for (int peer = 0; peer < world_size(); ++peer) {
        const Tensor theirs = slice_of(*this, full, peer), mine = slice_of(*this, out, peer);
        const auto bytes = static_cast<std::size_t>(mine.bytes());
        if (result == ncclSuccess) {
          result = ncclSend(theirs.data, bytes, ncclUint8, peer, communicator, handle_of(stream));
        }
        if (result == ncclSuccess) {
          result = ncclRecv(mine.data, bytes, ncclUint8, peer, communicator, handle_of(stream));
        }
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
  }

  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    check_all_to_all_v(*this, sends, receives, from, to, label);
    run(stream, {"all_to_all_v", label, from}, [&](ncclComm_t communicator) {
      ncclResult_t result = ncclGroupStart();
      for (int peer = 0; peer < world_size(); ++peer) {
        const ElementRange& sent = sends[static_cast<std::size_t>(peer)];
        const ElementRange& expected = receives[static_cast<std::size_t>(peer)];
        const Tensor theirs = from.part(sent.first, sent.count);
        const Tensor mine = to.part(expected.first, expected.count);
        if (result == ncclSuccess) {
          result = ncclSend(theirs.data, static_cast<std::size_t>(theirs.bytes()), ncclUint8, peer,
                            communicator, handle_of(stream));
        }
        if (result == ncclSuccess) {
          result = ncclRecv(mine.data, static_cast<std::size_t>(mine.bytes()), ncclUint8, peer,
                            communicator, handle_of(stream));
        }
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
  }

  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    check_root(*this, root);
    run(stream, {"broadcast", label, data, root}, [&](ncclComm_t communicator) {
      return ncclBroadcast(data.data, data.data, static_cast<std::size_t>(data.bytes()), ncclUint8,
                           root, communicator, handle_of(stream));
    });
  }

  // The smallest collective that no rank can pass alone, on a byte that is never read.
  void barrier(Stream& stream, const std::string& label) override {
    void* byte = cuda_stream(stream).mailbox();
    run(stream, {"barrier", label}, [&](ncclComm_t communicator) {
      return ncclAllReduce(byte, byte, 1, ncclUint8, ncclMax, communicator, handle_of(stream));
    });
  }

  void check_alive() override { group_->check_alive(rank_); }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  static cudaStream_t handle_of(Stream& stream) { return cuda_stream(stream).handle(); }
  template <class Enqueue>
  void run(Stream& stream, const Contribution& call, Enqueue&& enqueue) {
    group_->run(rank_, call, handle_of(stream),
                [&](ncclComm_t communicator) { return static_cast<int>(enqueue(communicator)); });
  }

  std::shared_ptr<NcclGroup> group_;
  const int rank_;
};

// The ranks of this process, one thread and GPU each, and a thread that checks their deadlines.
class NcclRendezvous final : public Rendezvous {
 public:
  NcclRendezvous(NcclRanks ranks, std::chrono::milliseconds timeout, NcclProcesses* processes)
      : ranks_(std::move(ranks)),
        timeout_(timeout),
        processes_(processes),
        watch_(start_thread("that watches NCCL", [this] { watch(); })) {}
  ~NcclRendezvous() override {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    watch_.join();
  }

  std::unique_ptr<Communicator> join(const Group& group) override {
    const std::shared_ptr<NcclGroup> members = group_named(group);
    members->enter(group.index);
    return std::make_unique<NcclCommunicator>(members, group.index);
  }

  void abort(const std::string& reason) override {
    std::string first;
    {
      std::lock_guard lock(mutex_);
      if (reason_.empty()) reason_ = reason.empty() ? "a rank stopped" : reason;
      first = reason_;
    }
    if (processes_) processes_->abort(first);
    for (const std::shared_ptr<NcclGroup>& members : groups()) members->abort(first);
  }

 private:
  std::shared_ptr<NcclGroup> group_named(const Group& group) {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw PeerError("{}", reason_);
    std::shared_ptr<NcclGroup>& members = groups_[group.name];
    if (!members) {
      members = std::make_shared<NcclGroup>(group.name, group.ranks, ranks_, timeout_, processes_);
    }
    return members;
  }
  std::vector<std::shared_ptr<NcclGroup>> groups() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<NcclGroup>> all;
    for (const auto& [name, members] : groups_) all.push_back(members);
    return all;
  }
  // Without the lock: asking other processes takes some moments.
  void watch() {
    using std::chrono::milliseconds;
    const milliseconds interval = std::clamp(timeout_ / 20, milliseconds(1), milliseconds(250));
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval, [&] { return over_; })) {
      const bool aborted = !reason_.empty();
      lock.unlock();
      try {
        // Otherwise asking about events may open a context on the machine's first GPU.
        if (!ranks_.devices.empty()) use_cuda_device(ranks_.devices.front());
        answer_others();
        const std::string trouble = aborted ? "" : trouble_of_groups();
        if (!trouble.empty()) abort(trouble);
      } catch (const std::exception& error) {  // a fault of the GPU, which its ranks report too
        abort(error.what());
        return;
      }
      lock.lock();
    }
  }
  std::string trouble_of_groups() {
    for (const std::shared_ptr<NcclGroup>& members : groups()) {
      std::string trouble = members->trouble([this] { answer_others(); });
      if (!trouble.empty()) return trouble;
    }
    return "";
  }
  void answer_others() {
    for (const std::shared_ptr<NcclGroup>& members : groups()) members->answer();
  }

  const NcclRanks ranks_;
  const std::chrono::milliseconds timeout_;
  NcclProcesses* const processes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::map<std::string, std::shared_ptr<NcclGroup>> groups_;
  std::string reason_;
  std::thread watch_;  // last: it starts when everything else is there
};

int nccl_version() {
  int version = 0;
  SHERD_CHECK(ncclGetVersion(&version) == ncclSuccess, "ncclGetVersion");
  return version;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Settings that the code above depends on, unless the user has set others.
void set_up_nccl() {
  // A rank has several communicators active at once. Every rank calls them in the same order, and
  // with this setting NCCL executes them in call order. So two kernels that wait for peers can't
  // take each other's place on the device.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  // All connections at joining, so that a collective's first call doesn't wait for its peers.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
}

}  // namespace

LoadedLibrary nccl_library() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&ncclGetVersion), &info) != 0;
  return {"NCCL", version_text(nccl_version()), 0, found ? info.dli_fname : ""};
}

std::shared_ptr<Rendezvous> make_nccl_rendezvous(std::vector<int> devices,
                                                 std::chrono::milliseconds timeout) {
  const auto world_size = static_cast<int>(devices.size());
  return make_nccl_rendezvous({0, std::move(devices), world_size}, timeout, nullptr);
}

std::shared_ptr<Rendezvous> make_nccl_rendezvous(const NcclRanks& ranks,
                                                 std::chrono::milliseconds timeout,
                                                 NcclProcesses* processes) {
  constexpr int kKeepsOrder = NCCL_VERSION(2, 26, 0);
  if (ranks.world_size > 1 && nccl_version() < kKeepsOrder) {
    throw UsageError(
        "{} ranks with a GPU each need NCCL 2.26 or newer, which keeps a rank's communicators in "
        "order; {} was loaded. Put a newer libnccl.so.2 first into LD_LIBRARY_PATH, or use "
        "--share-device on one GPU",
        ranks.world_size, nccl_library().text());
  }
  set_up_nccl();
  return std::make_shared<NcclRendezvous>(ranks, timeout, processes);
}

}  // namespace sherd::sharding
