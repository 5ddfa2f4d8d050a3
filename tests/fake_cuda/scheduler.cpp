#include "tests/fake_cuda/scheduler.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace fake_cuda {
namespace {

thread_local cudaStream_t executing_stream = nullptr;

}  // namespace

void join(Knowledge& into, const Knowledge& from) {
  for (const auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}

Scheduler& Scheduler::get() {
  static auto* scheduler = new Scheduler;  // outlives whatever is destroyed at exit
  return *scheduler;
}

bool in_host_function() {
  return executing_stream != nullptr;
}

void Scheduler::enqueue(std::unique_lock<std::mutex>& lock, cudaStream_t stream,
                        Operation operation) {
  if (stream->capture) {
    stream->capture->operations.push_back(std::move(operation));
    return;
  }
  stream->queue.push_back({std::move(operation), host});
  changed_.notify_all();
  // Mostly later: work that is done at the call hides the waits that are missing.
  for (auto eager = random_() % 8; eager > 5; --eager) {
    if (!run_one(lock)) break;
  }
}

void Scheduler::finish(std::unique_lock<std::mutex>& lock, cudaStream_t stream) {
  while (!stream->queue.empty()) {
    if (!run_one(lock)) changed_.wait(lock);
  }
  join(host, stream->known);
}

void Scheduler::finish_device(std::unique_lock<std::mutex>& lock, int device) {
  const auto has_work = [&](const auto& entry) {
    return entry.second->device == device && !entry.second->queue.empty();
  };
  while (std::any_of(streams.begin(), streams.end(), has_work)) {
    if (!run_one(lock)) changed_.wait(lock);
  }
  for (const auto& [handle, stream] : streams) {
    if (stream->device == device) join(host, stream->known);
  }
}

bool Scheduler::run_one(std::unique_lock<std::mutex>& lock) {
  if (executing_stream) return false;
  std::vector<CUstream_st*> candidates;
  for (const auto& [handle, stream] : streams) {
    if (!stream->busy && !stream->queue.empty()) candidates.push_back(stream.get());
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const CUstream_st* a, const CUstream_st* b) { return a->id < b->id; });
  std::shuffle(candidates.begin(), candidates.end(), random_);
  // Whoever was asked first may wait for what another one has begun since.
  for (std::int64_t seen = -1; seen != num_changes_;) {
    seen = num_changes_;
    if (run_one_of(candidates, lock)) return true;
  }
  return false;
}

bool Scheduler::run_one_of(const std::vector<CUstream_st*>& streams,
                           std::unique_lock<std::mutex>& lock) {
  for (CUstream_st* stream : streams) {
    Operation& operation = stream->queue.front().operation;
    join(stream->known, stream->queue.front().host);
    if (operation.ready && !operation.ready()) continue;
    stream->busy = true;
    check(*stream, operation);
    lock.unlock();
    executing_stream = stream;
    operation.run();
    executing_stream = nullptr;
    lock.lock();
    stream->queue.pop_front();
    stream->busy = false;
    clock_ms += 1.0;
    changed_.notify_all();
    return true;
  }
  return false;
}

// A past access is in order with this one if the stream knows that its operation is over.
void Scheduler::check(CUstream_st& stream, const Operation& operation) {
  const std::int64_t number = ++stream.known[stream.id];
  for (const Access& access : operation.operands) {
    const char* begin = static_cast<const char*>(access.data);
    const char* end = begin + access.bytes;
    std::erase_if(past_, [&](const Past& past) {
      if (past.end <= begin || end <= past.begin) return false;
      const bool known = stream.known[past.stream] >= past.number;
      if (!known && (past.write || access.write)) {
        races.push_back(operation.name + " on stream " + std::to_string(stream.id) +
                        (access.write ? " writes" : " reads") + " what " + past.name +
                        " on stream " + std::to_string(past.stream) +
                        (past.write ? " writes" : " reads") + ", and nothing orders them");
      }
      return known && access.write && begin <= past.begin && past.end <= end;
    });
  }
  for (const Access& access : operation.operands) {
    const char* begin = static_cast<const char*>(access.data);
    past_.push_back({begin, begin + access.bytes, stream.id, number, access.write, operation.name});
  }
}

void Scheduler::forget_memory(const void* data) {
  const auto found = memory.find(data);
  const char* begin = static_cast<const char*>(data);
  const char* end = begin + found->second.bytes;
  std::erase_if(past_, [&](const Past& past) { return begin <= past.begin && past.end <= end; });
  memory.erase(found);
}

void Scheduler::forget_history() {
  host.clear();
  past_.clear();
}

void start(const Machine& machine) {
  const std::string left = left_behind();
  Scheduler& scheduler = Scheduler::get();
  std::lock_guard lock(scheduler.mutex);
  if (!left.empty()) {
    std::fprintf(stderr, "the last machine left %s\n", left.c_str());
    std::abort();
  }
  scheduler.machine = machine;
  scheduler.random_.seed(machine.seed);
  scheduler.contexts.clear();
  scheduler.races.clear();
  scheduler.past_.clear();
  scheduler.host.clear();
}

std::set<int> contexts() {
  std::lock_guard lock(Scheduler::get().mutex);
  return Scheduler::get().contexts;
}

std::vector<std::string> races() {
  std::lock_guard lock(Scheduler::get().mutex);
  return Scheduler::get().races;
}

void forget_races() {
  std::lock_guard lock(Scheduler::get().mutex);
  Scheduler::get().races.clear();
}

std::string left_behind() {
  Scheduler& scheduler = Scheduler::get();
  std::lock_guard lock(scheduler.mutex);
  std::string text;
  const auto name = [&](std::size_t count, const char* what) {
    if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  name(scheduler.streams.size(), "streams");
  name(scheduler.events.size(), "events");
  name(scheduler.memory.size(), "pieces of memory");
  name(static_cast<std::size_t>(scheduler.num_graphs), "graphs");
  name(static_cast<std::size_t>(scheduler.num_communicators), "communicators");
  return text;
}

}  // namespace fake_cuda
