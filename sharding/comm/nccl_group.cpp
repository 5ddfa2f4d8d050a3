#include "sharding/comm/nccl_group.h"

#include <nccl.h>

#include <cstring>

#include "core/cuda_device.h"
#include "core/error.h"
#include "core/thread.h"

namespace sherd::sharding {
namespace {

// "" for success.
std::string text_of(ncclResult_t result, const std::string& call, ncclComm_t communicator) {
  if (result == ncclSuccess) return "";
  return fmt::format("{} failed: {} ({})", call, ncclGetErrorString(result),
                     ncclGetLastError(communicator));
}

}  // namespace

NcclGroup::NcclGroup(std::string name, std::vector<int> ranks, std::vector<int> devices,
                     std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      timeout_(timeout),
      meeting_(ranks, timeout),
      calls_(ranks, timeout),
      members_(ranks.size()) {
  for (std::size_t m = 0; m < ranks.size(); ++m) {
    members_[m].rank = ranks[m];
    members_[m].device = devices[m];
  }
}

NcclGroup::~NcclGroup() {
  for (std::thread& thread : aborting_) thread.join();
}

void NcclGroup::enter(int index) {
  if (index == 0) {
    ncclUniqueId id;
    const std::string error = text_of(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    if (!error.empty()) throw PeerError("{}", error);
    std::lock_guard lock(mutex_);
    id_.assign(id.internal, id.internal + sizeof id.internal);
  }
  meeting_.bring(index, {"connecting", name_});
  connect(index);
}

// On a thread that can be left behind: nothing else ends a connection that isn't made.
void NcclGroup::connect(int index) {
  Member& member = members_[index];
  std::thread thread = start_thread(
      fmt::format("that connects rank {}", member.rank),
      [self = shared_from_this(), &member, index] { self->make_communicator(member, index); });
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, timeout_, [&] { return member.connected || !reason_.empty(); });
  if (!member.connected) {
    member.connected = true;  // too late now
    thread.detach();
    if (in_time) throw PeerError("{}", reason_);
    throw PeerError(
        "rank {} waited {} s for NCCL to connect {}. NCCL_DEBUG=INFO says what it tries.",
        member.rank, std::chrono::duration<double>(timeout_).count(), name_);
  }
  lock.unlock();
  thread.join();
  throw_if_aborted();
  if (!member.error.empty()) throw PeerError("{}", member.error);
}

void NcclGroup::make_communicator(Member& member, int index) {
  ncclUniqueId id;
  std::memcpy(id.internal, id_.data(), id_.size());
  ncclComm_t communicator = nullptr;
  std::string error;
  try {
    use_cuda_device(member.device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    error = text_of(ncclCommInitRankConfig(&communicator, size(), id, index, &config),
                    "connecting " + name_, nullptr);
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  {
    std::lock_guard lock(mutex_);
    if (!member.connected && reason_.empty()) {
      member.communicator = std::exchange(communicator, nullptr);
      member.error = error;
    }
    member.connected = true;
    changed_.notify_all();
  }
  if (communicator) ncclCommAbort(communicator);  // nobody waits for it any more
}

void NcclGroup::run(int index, const Contribution& call, CUstream_st* stream,
                    const std::function<int(ncclComm*)>& enqueue) {
  Member& member = members_[index];
  throw_if_aborted();
  const std::string wrong = calls_.begin(index, call, stream);
  if (!wrong.empty()) abort(wrong);
  ncclResult_t result = ncclSuccess;
  std::string error;
  {
    std::lock_guard calling(member.calling);
    ncclComm_t communicator = communicator_of(member);
    if (!communicator) throw_if_aborted();
    result = static_cast<ncclResult_t>(enqueue(communicator));
    throw_if_aborted();
    error = text_of(result, call.text(), communicator);
  }
  if (!error.empty()) throw PeerError("{}", error);
  calls_.end(index, stream);
}

ncclComm* NcclGroup::communicator_of(const Member& member) {
  std::lock_guard lock(mutex_);
  return member.communicator;
}

// What NCCL's own threads have found out since the last call; `calling` is held.
std::string NcclGroup::error_of(Member& member) {
  ncclComm_t communicator = communicator_of(member);
  if (!communicator) return "";
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator, &result);
  return text_of(asked == ncclSuccess ? result : asked, "a collective of " + name_, communicator);
}

void NcclGroup::check_alive(int index) {
  throw_if_aborted();
  std::lock_guard calling(members_[index].calling);
  throw_if_aborted();
  const std::string error = error_of(members_[index]);
  if (!error.empty()) throw PeerError("{}", error);
}

std::string NcclGroup::trouble() {
  for (Member& member : members_) {
    const std::unique_lock calling(member.calling, std::try_to_lock);
    if (!calling) continue;  // in a call, which says itself what is wrong
    std::string error = error_of(member);
    if (!error.empty()) return fmt::format("rank {}: {}", member.rank, error);
  }
  return calls_.overdue();
}

void NcclGroup::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!reason_.empty() || num_left_ == size()) return;
  reason_ = reason.empty() ? "a rank stopped" : reason;
  changed_.notify_all();
  meeting_.abort(reason_);
  for (Member& member : members_) {
    ncclComm_t communicator = std::exchange(member.communicator, nullptr);
    if (!communicator) continue;
    aborting_.emplace_back([this, &member, communicator] { end_by_force(member, communicator); });
  }
}

void NcclGroup::end_by_force(Member& member, ncclComm* communicator) {
  // A call that only enqueues is over at once. One that isn't waits for peers, and then the abort is
  // what ends it.
  constexpr std::chrono::seconds kEnqueueing{1};
  const std::unique_lock calling(member.calling, kEnqueueing);
  try {
    use_cuda_device(member.device);
  } catch (const std::exception&) {  // the device has failed; NCCL still has to be told
  }
  ncclCommAbort(communicator);
}

void NcclGroup::leave(int index) noexcept {
  Member& member = members_[index];
  ncclComm_t communicator = nullptr;
  {
    std::unique_lock lock(mutex_);
    ++num_left_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_left_ == size() || !reason_.empty(); });
    if (reason_.empty()) communicator = std::exchange(member.communicator, nullptr);
  }
  if (communicator) ncclCommDestroy(communicator);
}

void NcclGroup::throw_if_aborted() {
  std::lock_guard lock(mutex_);
  if (!reason_.empty()) throw PeerError("{}", reason_);
}

}  // namespace sherd::sharding
