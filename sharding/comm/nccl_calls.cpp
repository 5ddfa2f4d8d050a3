#include "sharding/comm/nccl_calls.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "core/cuda_event.h"

namespace sherd::sharding {

struct NcclCalls::Call {
  Contribution call;
  OwnedCudaEvent begin, end;
  Clock::time_point entered;
  std::optional<Clock::time_point> reached{};  ///< when its stream was first seen to be there
  bool returned = false;                       ///< the host is through with it

  bool is_reached() const { return begin.passed(); }
  bool is_finished() const { return returned && end.passed(); }
  void wait_longer(Clock::duration time) {
    entered += time;
    if (reached) *reached += time;
  }
};

struct NcclCalls::Member {
  std::deque<Call> calls;          // the oldest first
  std::int64_t num_forgotten = 0;  // so the first of `calls` has this number
  std::vector<OwnedCudaEvent> free{};

  std::int64_t num_made() const { return num_forgotten + std::ssize(calls); }
  OwnedCudaEvent take_event() {
    if (free.empty()) return OwnedCudaEvent(cudaEventDisableTiming);
    OwnedCudaEvent event = std::move(free.back());
    free.pop_back();
    return event;
  }
};

// How often a process that runs looks for calls that are overdue, at least: asking other processes
// takes some moments.
constexpr std::chrono::seconds kOften{5};

NcclCalls::NcclCalls(std::vector<int> ranks, std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)), timeout_(timeout), awake_(kOften), members_(ranks_.size()) {}
NcclCalls::~NcclCalls() = default;

// Events are recorded without the lock. If a device's queue is full, CUDA makes the caller wait
// until there is room, which may depend on the other members.
std::string NcclCalls::begin(int member, const Contribution& call, CUstream_st* stream) {
  constexpr std::size_t kMany = 64;
  Member& caller = members_[member];
  std::unique_lock lock(mutex_);
  if (caller.calls.size() >= kMany) forget_finished();
  Call made{call, caller.take_event(), caller.take_event(), {}};
  lock.unlock();
  made.begin.record(stream);
  made.entered = Clock::now();
  lock.lock();
  caller.calls.push_back(std::move(made));
  return disagreement(caller.num_made() - 1);
}

void NcclCalls::end(int member, CUstream_st* stream) {
  std::unique_lock lock(mutex_);
  Call& made = members_[member].calls.back();  // stays there: it hasn't returned
  lock.unlock();
  made.end.record(stream);
  lock.lock();
  made.returned = true;
}

std::optional<NcclCalls::Overdue> NcclCalls::overdue() {
  std::lock_guard lock(mutex_);
  forget_finished();
  const auto now = Clock::now();
  const auto stopped = awake_.stopped();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    Member& member = members_[m];
    for (Call& call : member.calls) call.wait_longer(stopped);
    // Calls of a communicator are executed in order: only the first that isn't finished can wait.
    const auto first = std::find_if(member.calls.begin(), member.calls.end(),
                                    [](const Call& call) { return !call.is_finished(); });
    if (first == member.calls.end()) continue;
    if (first->returned && !first->is_reached()) continue;
    if (!first->reached) first->reached = first->returned ? now : first->entered;
    if (now - *first->reached <= timeout_) continue;
    const std::int64_t number = member.num_forgotten + (first - member.calls.begin());
    return Overdue{static_cast<int>(m), number, first->call, missing_in(number)};
  }
  return std::nullopt;
}

NcclCalls::Standing NcclCalls::standing(int member, std::int64_t number) {
  std::lock_guard lock(mutex_);
  const Member& of = members_[member];
  Standing standing{of.num_forgotten, {}};
  for (const Call& call : of.calls) {
    if (!has_come_to(call)) break;
    ++standing.num_reached;
  }
  const Call* call = call_of(member, number);
  if (call && has_come_to(*call)) standing.call = call->call.text();
  return standing;
}

// A member still inside the call on its host has come too.
bool NcclCalls::has_come_to(const Call& call) {
  return !call.returned || call.is_reached();
}

const NcclCalls::Call* NcclCalls::call_of(int member, std::int64_t number) const {
  const Member& of = members_[member];
  if (number < of.num_forgotten || number >= of.num_made()) return nullptr;
  return &of.calls[static_cast<std::size_t>(number - of.num_forgotten)];
}

std::string NcclCalls::disagreement(std::int64_t number) const {
  const Call* first = call_of(0, number);
  for (std::size_t m = 1; first && m < members_.size(); ++m) {
    const Call* other = call_of(static_cast<int>(m), number);
    if (!other || other->call.agrees(first->call)) continue;
    return disagreement_text(ranks_[0], first->call, ranks_[m], other->call);
  }
  return "";
}

std::vector<int> NcclCalls::missing_in(std::int64_t number) const {
  std::vector<int> missing;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Call* call = call_of(static_cast<int>(m), number);
    if (!call || !has_come_to(*call)) missing.push_back(ranks_[m]);
  }
  return missing;
}

std::string NcclCalls::text_of(const Overdue& overdue) const {
  const int rank = ranks_[static_cast<std::size_t>(overdue.member)];
  if (!overdue.missing.empty()) return waited_text(rank, timeout_, overdue.missing, overdue.call);
  return fmt::format(
      "rank {} waited {} s in {}, which all its peers have reached: the connection between "
      "GPUs hangs. NCCL_DEBUG=INFO shows which one NCCL uses.",
      rank, std::chrono::duration<double>(timeout_).count(), overdue.call.text());
}

// A call is kept until every member has made it, for the comparison.
void NcclCalls::forget_finished() {
  std::int64_t made_by_all = members_[0].num_made();
  for (const Member& member : members_) made_by_all = std::min(made_by_all, member.num_made());
  for (Member& member : members_) {
    while (!member.calls.empty() && member.num_forgotten < made_by_all &&
           member.calls.front().is_finished()) {
      member.free.push_back(std::move(member.calls.front().begin));
      member.free.push_back(std::move(member.calls.front().end));
      member.calls.pop_front();
      ++member.num_forgotten;
    }
  }
}

}  // namespace sherd::sharding
