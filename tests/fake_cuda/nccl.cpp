// NCCL as its documentation describes it, where ranks are threads of one process:
//
//   - A collective's kernel begins when its stream reaches it, and ends when it has begun on all members.
//   - With NCCL_LAUNCH_ORDER_IMPLICIT=1 a device's kernels begin in the order of their calls: each when the
//     one before has begun; with drivers before CUDA 12.3, when it has ended.
//   - Without it, or with such a driver, a kernel holds its device's only place meanwhile: two
//     communicators can take it from one another, and hang.
//   - A first call waits for all members' first calls, unless NCCL_RUNTIME_CONNECT=0.
//   - Abort and destroy return when all members have called either.
//   - Sums in another order than the ranks', rounded at every hop.
//   - In place, what a rank sends isn't written.
// Calls of one communicator by two threads at once, and calls of one that is gone, end the program.
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "tests/fake_cuda/nccl_collective.h"
#include "tests/fake_cuda/scheduler.h"

namespace {

using fake_cuda::Scheduler;
using fake_nccl::Collective;
using fake_nccl::Kind;
using fake_nccl::misuse;
using fake_nccl::Part;
using fake_nccl::size_of;
using fake_nccl::Stretch;
using Lock = std::unique_lock<std::mutex>;

struct Group {
  int size = 0, num_joined = 0, num_ended = 0, num_first_calls = 0;
  std::map<std::int64_t, std::shared_ptr<Collective>> collectives;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0, device = 0;
  std::int64_t num_calls = 0, num_done = 0;
  bool in_call = false, aborted = false, broken = false, is_ending = false;
};

namespace {

Scheduler& scheduler() {
  return Scheduler::get();
}

std::map<std::string, std::shared_ptr<Group>> groups;
std::map<ncclComm_t, std::shared_ptr<ncclComm>> communicators;
/// Each device's NCCL calls that later ones still wait for, in the host's order; and the call whose kernels have the
/// device's place for kernels.
struct Call {
  ncclComm_t communicator;
  std::int64_t number;
  bool operator==(const Call&) const = default;
};
std::map<int, std::vector<Call>> calls_of_device;
std::map<int, Call> place_of_device;

std::shared_ptr<ncclComm> existing(ncclComm_t communicator) {
  const auto found = communicators.find(communicator);
  if (found == communicators.end()) misuse("a communicator that is gone");
  return found->second;
}

bool is_set(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text && std::strcmp(text, value) == 0;
}

void give_place_back(const Call& call, int device) {
  std::erase(calls_of_device[device], call);
  const auto place = place_of_device.find(device);
  if (place != place_of_device.end() && place->second == call) place_of_device.erase(place);
}

bool may_begin(const Call& call, int device) {
  constexpr int kBeginsTogether = 12030;
  const bool ordered = is_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  std::vector<Call>& calls = calls_of_device[device];
  if (ordered && !(calls.front() == call)) return false;
  if (ordered && scheduler().machine.driver_version >= kBeginsTogether) {
    calls.erase(calls.begin());
    scheduler().changed();  // the next one may begin
    return true;
  }
  return place_of_device.emplace(device, call).second;
}

// Whether the kernel is through; begins it when it can.
bool is_through(ncclComm& communicator, std::int64_t number, cudaStream_t stream) {
  const Call call{&communicator, number};
  const std::shared_ptr<Collective> c = communicator.group->collectives[number];
  if (communicator.aborted) {
    give_place_back(call, communicator.device);
    communicator.num_done = number + 1;
    return true;
  }
  char& begun = c->begun[static_cast<std::size_t>(communicator.rank)];
  if (!begun && may_begin(call, communicator.device)) {
    begun = true;
    fake_cuda::join(c->known, stream->known);
    if (std::count(c->begun.begin(), c->begun.end(), true) == communicator.group->size) {
      execute(*c);
      c->complete = true;
      scheduler().changed();
    }
  }
  if (!c->complete) return false;
  give_place_back(call, communicator.device);
  fake_cuda::join(stream->known, c->known);
  communicator.num_done = number + 1;
  return true;
}

ncclResult_t enqueue(ncclComm_t handle, cudaStream_t stream, const Collective& described, Part part,
                     std::vector<fake_cuda::Access> operands) {
  Lock lock(scheduler().mutex);
  const std::shared_ptr<ncclComm> communicator = existing(handle);
  if (communicator->in_call) misuse("two threads call one communicator");
  if (stream->device != communicator->device) return ncclInvalidArgument;
  if (communicator->broken) return ncclSystemError;
  Group& group = *communicator->group;
  const std::int64_t number = communicator->num_calls++;
  if (number == 0 && !is_set("NCCL_RUNTIME_CONNECT", "0")) {
    communicator->in_call = true;
    ++group.num_first_calls;
    scheduler().changed();
    while (group.num_first_calls < group.size && !communicator->aborted) scheduler().wait(lock);
    communicator->in_call = false;
    if (communicator->aborted) return ncclInternalError;
  }
  std::shared_ptr<Collective>& collective = group.collectives[number];
  if (!collective) {
    collective = std::make_shared<Collective>(described);
    collective->parts.resize(static_cast<std::size_t>(group.size));
    collective->begun.resize(static_cast<std::size_t>(group.size));
  }
  collective->parts[static_cast<std::size_t>(communicator->rank)] = part;
  calls_of_device[communicator->device].push_back({handle, number});
  scheduler().enqueue(
      lock, stream,
      {"collective", [] {}, std::move(operands),
       [communicator, number, stream] { return is_through(*communicator, number, stream); }});
  return ncclSuccess;
}

// A group of sends and receives that a thread is about to end.
struct PointCall {
  std::size_t count = 0;
  ncclDataType_t type{};
  int peer = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};
struct Exchange {
  std::vector<Stretch> sends, receives;  // by peer
  PointCall call;
};
thread_local std::optional<Exchange> grouped;

ncclResult_t add_to_group(std::vector<Stretch> Exchange::*which, const void* data,
                          const PointCall& call) {
  if (!grouped) misuse("a send or receive outside of a group");
  if (call.peer != static_cast<int>(((*grouped).*which).size())) misuse("peers out of order");
  ((*grouped).*which).push_back({static_cast<const char*>(data), call.count * size_of(call.type)});
  grouped->call = call;
  return ncclSuccess;
}

// The member's own end, and then all members'.
void end(Lock& lock, const std::shared_ptr<ncclComm>& communicator) {
  ++communicator->group->num_ended;
  communicator->is_ending = true;
  scheduler().changed();
  while (communicator->group->num_ended < communicator->group->size || communicator->in_call) {
    scheduler().wait(lock);
  }
  communicators.erase(communicator.get());
  --scheduler().num_communicators;
  scheduler().changed();
}

}  // namespace

namespace fake_cuda {

int communicators_ending() {
  Lock lock(scheduler().mutex);
  int count = 0;
  for (const auto& [handle, communicator] : communicators) count += communicator->is_ending;
  return count;
}

void let_connect() {
  Lock lock(scheduler().mutex);
  scheduler().machine.connecting_hangs = false;
  scheduler().changed();
}

void break_connection(int device) {
  Lock lock(scheduler().mutex);
  for (const auto& [handle, communicator] : communicators) {
    if (communicator->device == device) communicator->broken = true;
  }
}

}  // namespace fake_cuda

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const int asked = scheduler().machine.nccl_version;
  *version = asked ? asked : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::int64_t number = 0;
  Lock lock(scheduler().mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "%lld", static_cast<long long>(++number));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  int device = 0;
  cudaGetDevice(&device);
  Lock lock(scheduler().mutex);
  if (config->blocking != 1) misuse("a communicator that isn't blocking starts threads");
  ++scheduler().num_communicators;  // one that is still being connected must be ended, too
  while (scheduler().machine.connecting_hangs) scheduler().wait(lock);
  auto communicator = std::make_shared<ncclComm>();
  std::shared_ptr<Group>& group = groups[id.internal];
  if (!group) group = std::make_shared<Group>();
  communicator->group = group;
  communicator->rank = rank;
  communicator->device = device;
  group->size = size;
  ++group->num_joined;
  scheduler().changed();
  while (communicator->group->num_joined < size) scheduler().wait(lock);
  groups.erase(id.internal);
  *handle = communicator.get();
  communicators[*handle] = communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  Lock lock(scheduler().mutex);
  const auto communicator = existing(handle);
  if (communicator->num_done < communicator->num_calls) misuse("destroyed with work in its queue");
  end(lock, communicator);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  Lock lock(scheduler().mutex);
  const auto communicator = existing(handle);
  communicator->aborted = true;
  end(lock, communicator);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  Lock lock(scheduler().mutex);
  if (const int takes = scheduler().machine.asking_takes_ms; takes > 0) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(takes));
    lock.lock();
  }
  *error = existing(handle)->broken ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const auto world = static_cast<std::size_t>(communicator->group->size);
  const auto rank = static_cast<std::size_t>(communicator->rank);
  const std::size_t bytes = count * size_of(type);
  char* const all = static_cast<char*>(receive);
  std::vector<fake_cuda::Access> operands = {{send, bytes, false}};
  const auto writes = [&](std::size_t first, std::size_t end) {
    if (first < end) operands.push_back({all + first * bytes, (end - first) * bytes, true});
  };
  const bool in_place = send == all + rank * bytes;
  writes(0, in_place ? rank : world);
  if (in_place) writes(rank + 1, world);
  return enqueue(communicator, stream, {Kind::kAllGather, count, type},
                 {static_cast<const char*>(send), all}, std::move(operands));
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t, ncclComm_t communicator,
                               cudaStream_t stream) {
  const auto world = static_cast<std::size_t>(communicator->group->size);
  const std::size_t bytes = count * size_of(type);
  return enqueue(communicator, stream, {Kind::kReduceScatter, count, type},
                 {static_cast<const char*>(send), static_cast<char*>(receive)},
                 {{send, bytes * world, false}, {receive, bytes, true}});
}
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t communicator, cudaStream_t stream) {
  return enqueue(communicator, stream, {Kind::kAllReduce, count, type},
                 {static_cast<const char*>(send), static_cast<char*>(receive)},
                 {{send, count * size_of(type), false}, {receive, count * size_of(type), true}});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  const bool writes = communicator->rank != root || send != receive;
  return enqueue(communicator, stream, {Kind::kBroadcast, count, type, root},
                 {static_cast<const char*>(send), static_cast<char*>(receive)},
                 {{send, count * size_of(type), false}, {receive, count * size_of(type), writes}});
}
// Sends and receives come in groups only, each with every member: a group is one collective.
ncclResult_t ncclGroupStart() {
  if (grouped) misuse("a group within a group");
  grouped.emplace();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_to_group(&Exchange::sends, data, {count, type, peer, communicator, stream});
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_to_group(&Exchange::receives, data, {count, type, peer, communicator, stream});
}
ncclResult_t ncclGroupEnd() {
  if (!grouped) misuse("the end of no group");
  const Exchange exchange = *grouped;
  grouped.reset();
  const auto world = static_cast<std::size_t>(exchange.call.communicator->group->size);
  if (exchange.sends.size() != world || exchange.receives.size() != world) {
    misuse("a group without all members");
  }
  std::vector<fake_cuda::Access> operands;
  for (const Stretch& sent : exchange.sends) {
    if (sent.bytes > 0) operands.push_back({sent.data, sent.bytes, false});
  }
  for (const Stretch& received : exchange.receives) {
    if (received.bytes > 0) operands.push_back({received.data, received.bytes, true});
  }
  return enqueue(exchange.call.communicator, exchange.call.stream,
                 {Kind::kAllToAll, 0, exchange.call.type},
                 {.sends = exchange.sends, .receives = exchange.receives}, std::move(operands));
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "error";
}
const char* ncclGetLastError(ncclComm_t) {
  return "fake";
}

}  // extern "C"
