#include "sharding/comm/nccl_group.h"

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

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

constexpr std::chrono::milliseconds kToAnswer{2000}, kBetweenLooks{20};

// What ranks publish of themselves, and how they say where they stand.
constexpr const char *kHasCome = "has come", *kHasLeft = "has left",
                     *kAsks = "asks where all stand";
constexpr const char *kHasntCome = "not there", *kIsThrough = "through";

}  // namespace

NcclGroup::NcclGroup(std::string name, std::vector<int> ranks, const NcclRanks& here,
                     std::chrono::milliseconds timeout, NcclProcesses* processes)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      processes_(processes),
      meeting_(ranks_here(ranks_, here), timeout),
      calls_(ranks_here(ranks_, here), timeout),
      members_(ranks_here(ranks_, here).size()) {
  CHECK(!members_.empty() && (processes_ || all_are_here()), "{}: {} of {} members are here", name_,
        members_.size(), ranks_.size());
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
  CHECK(found != members_.end(), "{}: member {} isn't here", name_, index);
  return static_cast<int>(found - members_.begin());
}

void NcclGroup::enter(int index) {
  const int place = place_of(index);
  const Member& own = members_[static_cast<std::size_t>(place)];
  if (!all_are_here()) processes_->publish(notice_of(kHasCome, own.rank), "");
  if (place == 0) learn_id(own);
  meeting_.bring(place, {"connecting", name_});
  connect(members_[static_cast<std::size_t>(place)]);
}

void NcclGroup::learn_id(const Member& first) {
  ncclUniqueId id;
  const std::string notice = "the id of " + name_;
  std::string bytes;
  if (first.index == 0) {
    const std::string error = text_of(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    if (!error.empty()) throw PeerError("{}", error);
    bytes.assign(id.internal, sizeof id.internal);
    if (!all_are_here()) processes_->publish(notice, bytes);
  } else {
    const auto published = processes_->published(notice, timeout_);
    throw_if_aborted();
    if (!published) {
      throw PeerError("{}", waited_text(first.rank, timeout_, {ranks_[0]}, {"connecting", name_}));
    }
    bytes = *published;
    if (bytes.size() != sizeof id.internal) {
      throw PeerError("rank {} has sent an id of {} bytes for {}", ranks_[0], bytes.size(), name_);
    }
  }
  std::lock_guard lock(mutex_);
  id_.assign(bytes.begin(), bytes.end());
}

// On a thread that can be left behind: nothing else ends a connection that isn't made.
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
    throw_if_aborted();
    const std::vector<int> missing = missing_elsewhere(kHasCome);
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
  if (all_are_here() || !overdue->missing.empty()) return calls_.text_of(*overdue);
  return trouble_elsewhere(*overdue, meanwhile);
}

bool NcclGroup::is_here(int rank) const {
  return std::ranges::find(members_, rank, &Member::rank) != members_.end();
}

// What a rank publishes for the members of the group.
std::string NcclGroup::notice_of(const std::string& what, int rank) const {
  return fmt::format("{}: rank {} {}", name_, rank, what);
}

std::vector<int> NcclGroup::missing_elsewhere(const std::string& notice) const {
  std::vector<int> missing;
  for (const int rank : ranks_) {
    if (is_here(rank) || !processes_) continue;
    if (!processes_->published(notice_of(notice, rank), std::chrono::milliseconds(0))) {
      missing.push_back(rank);
    }
  }
  return missing;
}

namespace {

std::string stands_at(std::int64_t call) {
  return fmt::format("says where it stands with call {}", call);
}

}  // namespace

// Each other process has some moments to say where its ranks are; who says nothing hasn't come.
std::string NcclGroup::trouble_elsewhere(const NcclCalls::Overdue& overdue,
                                         const std::function<void()>& meanwhile) {
  using Clock = std::chrono::steady_clock;
  const Member& own = members_[static_cast<std::size_t>(overdue.member)];
  const std::string notice = stands_at(overdue.number);
  processes_->publish(notice_of(kAsks, own.rank), fmt::format("{}", overdue.number));
  const auto deadline = Clock::now() + kToAnswer;
  while (!missing_elsewhere(notice).empty() && Clock::now() < deadline) {
    meanwhile();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  if (!processes_->abort_reason().empty()) return "";  // which is on its way to this group
  std::vector<int> missing;
  for (const int rank : ranks_) {
    if (is_here(rank)) continue;
    const auto answer =
        processes_->published(notice_of(notice, rank), std::chrono::milliseconds(0));
    if (!answer || *answer == kHasntCome) {
      missing.push_back(rank);
    } else if (*answer != kIsThrough && *answer != overdue.call.text()) {
      return disagreement_text(own.rank, overdue.call.text(), rank, *answer);
    }
  }
  if (!missing.empty()) return waited_text(own.rank, timeout_, missing, overdue.call);
  return calls_.text_of(overdue);
}

void NcclGroup::answer() {
  if (all_are_here()) return;
  for (const int asker : ranks_) {
    if (is_here(asker)) continue;
    const auto asked = processes_->published(notice_of(kAsks, asker), std::chrono::milliseconds(0));
    if (!asked || *asked == answered_[asker]) continue;
    answered_[asker] = *asked;
    const std::int64_t number = std::atoll(asked->c_str());
    for (std::size_t place = 0; place < members_.size(); ++place) {
      const NcclCalls::Standing standing = calls_.standing(static_cast<int>(place), number);
      const std::string where = standing.num_reached <= number ? kHasntCome
                                : standing.call.empty()        ? kIsThrough
                                                               : standing.call;
      processes_->publish(notice_of(stands_at(number), members_[place].rank), where);
    }
  }
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
  Member& member = members_[static_cast<std::size_t>(place_of(index))];
  ncclComm_t communicator = nullptr;
  {
    std::unique_lock lock(mutex_);
    ++num_left_;
    all_have_left_ = num_left_ == size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_left_ == std::ssize(members_) || !reason_.empty(); });
  }
  if (!all_are_here()) wait_until_all_leave();
  {
    std::lock_guard lock(mutex_);
    all_have_left_ = all_have_left_ || reason_.empty();
    if (reason_.empty()) communicator = std::exchange(member.communicator, nullptr);
  }
  if (communicator) ncclCommDestroy(communicator);
}

void NcclGroup::wait_until_all_leave() {
  for (const Member& member : members_) processes_->publish(notice_of(kHasLeft, member.rank), "");
  while (reason().empty()) {
    const std::vector<int> missing = missing_elsewhere(kHasLeft);
    if (missing.empty()) return;
    processes_->published(notice_of(kHasLeft, missing[0]), kBetweenLooks);
    if (!processes_->abort_reason().empty()) std::this_thread::sleep_for(kBetweenLooks);
  }
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
