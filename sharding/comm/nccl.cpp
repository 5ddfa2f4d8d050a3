#include "sharding/comm/nccl.h"

#include <nccl.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "core/cuda_device.h"
#include "core/error.h"

namespace sherd::sharding {
namespace {

// The communicators of one group. NCCL's are non-blocking: a call that must wait for peers returns
// and is asked about later, so that an abort gets through.
class Group {
 public:
  explicit Group(std::size_t size) : members_(size) {}
  ~Group() {
    for (Member& member : members_) {
      if (member.communicator) ncclCommAbort(member.communicator);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void connect(const std::vector<int>& devices) {
    // A rank has two communicators at work at once. Every rank calls them in the same order, and
    // NCCL keeps to the order of calls if it is told so: two kernels that wait for peers can't
    // then take each other's place on the device. Not if the user has said otherwise.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const auto world = static_cast<int>(devices.size());
    check(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < world; ++r) {
      use_cuda_device(devices[r]);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const ncclResult_t result =
          ncclCommInitRankConfig(&members_[r].communicator, world, id, r, &config);
      if (result != ncclInProgress) check(result, "ncclCommInitRankConfig");
    }
    const ncclResult_t result = ncclGroupEnd();
    if (result != ncclInProgress) check(result, "ncclGroupEnd");
    for (int r = 0; r < world; ++r) settle(r, "ncclCommInitRankConfig");
  }

  int size() const { return static_cast<int>(members_.size()); }

  /// Enqueues `call(communicator)` for rank `r`.
  template <class Call>
  void run(int r, const std::string& what, Call&& call) {
    throw_if_aborted();
    ncclResult_t result;
    {
      std::lock_guard lock(members_[r].mutex);
      throw_if_aborted();
      result = call(members_[r].communicator);
    }
    if (result == ncclInProgress) return settle(r, what);
    check(result, what);
  }

  void abort(const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      if (!reason_.empty()) return;
      reason_ = reason.empty() ? "a rank stopped" : reason;
    }
    for (Member& member : members_) {
      std::lock_guard lock(member.mutex);
      if (member.communicator) ncclCommAbort(member.communicator);
      member.communicator = nullptr;
    }
  }

 private:
  struct Member {
    std::mutex mutex;
    ncclComm_t communicator = nullptr;
  };

  static void check(ncclResult_t result, const std::string& what) {
    if (result == ncclSuccess) return;
    throw PeerError("{} failed: {} ({})", what, ncclGetErrorString(result),
                    ncclGetLastError(nullptr));
  }
  void settle(int r, const std::string& what) {
    for (;;) {
      ncclResult_t result = ncclInProgress;
      {
        std::lock_guard lock(members_[r].mutex);
        throw_if_aborted();
        check(ncclCommGetAsyncError(members_[r].communicator, &result), what);
      }
      if (result != ncclInProgress) return check(result, what);
      std::this_thread::yield();
    }
  }
  void throw_if_aborted() {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw PeerError("{}", reason_);
  }

  std::vector<Member> members_;
  std::mutex mutex_;
  std::string reason_;
};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      CHECK(false, "a sum of {}", name_of(dtype));
      __builtin_unreachable();
  }
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return group_->size(); }

  // Bytes: any type.
  void all_gather(Stream& stream, const std::string& what, Tensor full) override {
    check_divides(full, what);
    const auto bytes = static_cast<std::size_t>(full.bytes() / world_size());
    const char* mine =
        static_cast<const char*>(full.data) + bytes * static_cast<std::size_t>(rank_);
    group_->run(rank_, "all_gather of " + what, [&](ncclComm_t communicator) {
      return ncclAllGather(mine, full.data, bytes, ncclUint8, communicator, handle_of(stream));
    });
  }

  void reduce_scatter(Stream& stream, const std::string& what, Tensor full, Tensor out) override {
    check_divides(full, what);
    CHECK(out.numel * world_size() == full.numel && out.dtype == full.dtype,
          "reduce_scatter of {}: {} elements into {}", what, full.numel, out.numel);
    group_->run(rank_, "reduce_scatter of " + what, [&](ncclComm_t communicator) {
      return ncclReduceScatter(full.data, out.data, static_cast<std::size_t>(out.numel),
                               type_of(full.dtype), ncclSum, communicator, handle_of(stream));
    });
  }

  void all_reduce(Stream& stream, const std::string& what, Tensor full) override {
    check_divides(full, what);
    group_->run(rank_, "all_reduce of " + what, [&](ncclComm_t communicator) {
      return ncclAllReduce(full.data, full.data, static_cast<std::size_t>(full.numel),
                           type_of(full.dtype), ncclSum, communicator, handle_of(stream));
    });
  }

  void broadcast(Stream& stream, const std::string& what, Tensor data, int root) override {
    CHECK(root >= 0 && root < world_size(), "broadcast from rank {}", root);
    group_->run(rank_, "broadcast of " + what, [&](ncclComm_t communicator) {
      return ncclBroadcast(data.data, data.data, static_cast<std::size_t>(data.bytes()), ncclUint8,
                           root, communicator, handle_of(stream));
    });
  }

  // The smallest collective that no rank can pass alone, on a byte that nobody looks at.
  void barrier(Stream& stream, const std::string& what) override {
    void* byte = cuda_stream(stream).mailbox();
    group_->run(rank_, "barrier of " + what, [&](ncclComm_t communicator) {
      return ncclAllReduce(byte, byte, 1, ncclUint8, ncclMax, communicator, handle_of(stream));
    });
  }

  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  static cudaStream_t handle_of(Stream& stream) { return cuda_stream(stream).handle(); }
  void check_divides(const Tensor& full, const std::string& what) const {
    CHECK(full.numel % world_size() == 0, "{}: {} elements on {} ranks", what, full.numel,
          world_size());
  }

  std::shared_ptr<Group> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(
    const std::vector<int>& devices) {
  auto group = std::make_shared<Group>(devices.size());
  group->connect(devices);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    communicators.push_back(std::make_unique<NcclCommunicator>(group, static_cast<int>(rank)));
  }
  return communicators;
}

}  // namespace sherd::sharding
