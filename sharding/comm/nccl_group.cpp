#include "sharding/comm/nccl_group.h"

#include <nccl.h>

#include <algorithm>
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

bool is_among(int rank, const NcclRanks& here) {
  return rank >= here.first && rank < here.first + std::ssize(here.devices);
}

std::vector<int> ranks_here(const std::vector<int>& ranks, const NcclRanks& here) {
  std::vector<int> own;
  for (const int rank : ranks) {
    if (is_among(rank, here)) own.push_back(rank);
  }
  return own;
}

}  // namespace

NcclGroup::NcclGroup(std::string name, std::vector<int> ranks, const NcclRanks& here,
                     std::chrono::milliseconds timeout, NcclProcesses* processes)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      processes_(processes),
      peers_(name_, ranks_, ranks_here(ranks_, here), processes),
      meeting_(ranks_here(ranks_, here), timeout),
      calls_(ranks_here(ranks_, here), timeout),
      members_(ranks_here(ranks_, here).size()) {
  for (std::size_t m = 0, next = 0; m < ranks_.size(); ++m) {
    if (!is_among(ranks_[m], here)) continue;
    Member& member = members_[next++];
    member.index = static_cast<int>(m);
    member.rank = ranks_[m];
    member.device = here.devices[static_cast<std::size_t>(ranks_[m] - here.first)];
  }
}

NcclGroup::~NcclGroup() {
  for (std::thread& thread : aborting_) thread.join();
}

int NcclGroup::place_of(int index) const {
  const auto found = std::ranges::find(members_, index, &Member::index);
  SHERD_CHECK(found != members_.end(), "{}: member {} isn't here", name_, index);
  return static_cast<int>(found - members_.begin());
}

void NcclGroup::enter(int index) {
  const int place = place_of(index);
  Member& own = members_[static_cast<std::size_t>(place)];
  if (place == 0) {
    peers_.say_come();
    learn_id(own);
  }
  meeting_.bring(place, {"connecting", name_});
  connect(own);
}

void NcclGroup::learn_id(const Member& first) {
  ncclUniqueId id;
  std::string bytes;
  if (first.index == 0) {
    const std::string error = text_of(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    if (!error.empty()) throw PeerError("{}", error);
    bytes.assign(id.internal, sizeof id.internal);
    peers_.send_id(bytes);
  } else {
    const auto received = peers_.await_id(timeout_);
    throw_if_aborted();
    if (!received) {
      throw PeerError("{}", waited_text(first.rank, timeout_, {ranks_[0]}, {"connecting", name_}));
    }
    bytes = *received;
    if (bytes.size() != sizeof id.internal) {
      throw PeerError("rank {} has sent an id of {} bytes for {}", ranks_[0], bytes.size(), name_);
    }
  }
  std::lock_guard lock(mutex_);
  id_.assign(bytes.begin(), bytes.end());
}

// On a thread that can be abandoned: nothing else ends a connection that isn't made.
void NcclGroup::connect(Member& member) {
  std::thread thread =
      start_thread(fmt::format("that connects rank {}", member.rank),
                   [self = shared_from_this(), &member] { self->make_communicator(member); });
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, timeout_, [&] { return member.connected || !reason_.empty(); });
  if (!member.connected) {
    member.connected = true;  // too late now
    thread.detach();
    if (in_time) throw PeerError("{}", reason_);
    lock.unlock();
    const std::vector<int> missing = peers_.not_come();
    throw_if_aborted();
    if (!missing.empty()) {
      throw PeerError("{}", waited_text(member.rank, timeout_, missing, {"connecting", name_}));
    }
    throw PeerError(
        "rank {} waited {} s for NCCL to connect {}. NCCL_DEBUG=INFO says what it tries.",
        member.rank, std::chrono::duration<double>(timeout_).count(), name_);
  }
  lock.unlock();
  thread.join();
  throw_if_aborted();
  if (!member.error.empty()) throw PeerError("{}", member.error);
}

void NcclGroup::make_communicator(Member& member) {
  ncclUniqueId id;
  std::memcpy(id.internal, id_.data(), id_.size());
  ncclComm_t communicator = nullptr;
  std::string error;
  try {
    use_cuda_device(member.device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    error = text_of(ncclCommInitRankConfig(&communicator, size(), id, member.index, &config),
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
  const int place = place_of(index);
  Member& member = members_[static_cast<std::size_t>(place)];
  throw_if_aborted();
  const std::string wrong = calls_.begin(place, call, stream);
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
  calls_.end(place, stream);
}

ncclComm* NcclGroup::communicator_of(const Member& member) {
  std::lock_guard lock(mutex_);
  return member.communicator;
}

// Errors that NCCL's own threads found since the last call; `calling` is held.
std::string NcclGroup::error_of(Member& member) {
  ncclComm_t communicator = communicator_of(member);
  if (!communicator) return "";
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator, &result);
  return text_of(asked == ncclSuccess ? result : asked, "a collective of " + name_, communicator);
}

void NcclGroup::check_alive(int index) {
  throw_if_aborted();
  Member& member = members_[static_cast<std::size_t>(place_of(index))];
  std::lock_guard calling(member.calling);
  throw_if_aborted();
  const std::string error = error_of(member);
  if (!error.empty()) throw PeerError("{}", error);
}

std::string NcclGroup::trouble(const std::function<void()>& meanwhile) {
  for (Member& member : members_) {
    const std::unique_lock calling(member.calling, std::try_to_lock);
    if (!calling) continue;  // in a call, which says itself what is wrong
    std::string error = error_of(member);
    if (!error.empty()) return fmt::format("rank {}: {}", member.rank, error);
  }
  const auto overdue = calls_.overdue();
  if (!overdue) return "";
  if (!peers_.any() || !overdue->missing.empty()) return calls_.text_of(*overdue);
  return trouble_elsewhere(*overdue, meanwhile);
}

std::string NcclGroup::trouble_elsewhere(const NcclCalls::Overdue& overdue,
                                         const std::function<void()>& meanwhile) {
  const int own = members_[static_cast<std::size_t>(overdue.member)].rank;
  const std::string call = overdue.call.text();
  const auto standings = peers_.ask(own, overdue.number, meanwhile);
  if (!processes_->abort_reason().empty()) return "";  // which is on its way to this group
  std::vector<int> missing;
  for (const NcclPeers::Standing& other : standings) {
    if (!other.has_come) {
      missing.push_back(other.rank);
    } else if (!other.call.empty() && other.call != call) {
      return disagreement_text(own, call, other.rank, other.call);
    }
  }
  if (!missing.empty()) return waited_text(own, timeout_, missing, overdue.call);
  return calls_.text_of(overdue);
}

void NcclGroup::answer() {
  if (!peers_.any()) return;
  peers_.answer([&](std::size_t place, std::int64_t number) {
    const NcclCalls::Standing own = calls_.standing(static_cast<int>(place), number);
    return NcclPeers::Standing{members_[place].rank, own.num_reached > number, own.call};
  });
}

void NcclGroup::abort(const std::string& reason) {
  if (processes_) processes_->abort(reason);
  std::lock_guard lock(mutex_);
  if (!reason_.empty() || all_have_left_) return;
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
  // A call that only enqueues is over at once. Any other call waits for peers, and the abort ends
  // it.
  constexpr std::chrono::seconds kEnqueueing{1};
  const std::unique_lock calling(member.calling, kEnqueueing);
  try {
    use_cuda_device(member.device);
  } catch (const std::exception&) {  // the device has failed; NCCL still has to be told
  }
  ncclCommAbort(communicator);
}

void NcclGroup::leave(int index) noexcept {
  Member& member = members_[static_cast<std::size_t>(place_of(index))];
  ncclComm_t communicator = nullptr;
  {
    std::unique_lock lock(mutex_);
    ++num_left_;
    all_have_left_ = num_left_ == size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_left_ == std::ssize(members_) || !reason_.empty(); });
  }
  peers_.leave();
  if (const std::string why = processes_ ? processes_->abort_reason() : ""; !why.empty())
    abort(why);
  {
    std::lock_guard lock(mutex_);
    all_have_left_ = reason_.empty();
    if (reason_.empty()) communicator = std::exchange(member.communicator, nullptr);
  }
  if (!communicator) return;
  { const std::lock_guard calling(member.calling); }  // whoever asks it for errors has ended
  ncclCommDestroy(communicator);
}

std::string NcclGroup::reason() {
  std::lock_guard lock(mutex_);
  return reason_;
}

// Also where the news of it has come to this process and not yet to this group.
void NcclGroup::throw_if_aborted() {
  std::string why = reason();
  if (why.empty() && processes_) why = processes_->abort_reason();
  if (!why.empty()) throw PeerError("{}", why);
}

}  // namespace sherd::sharding
