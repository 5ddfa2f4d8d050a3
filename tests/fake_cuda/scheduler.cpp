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
  if (is_late()) return;
  // Mostly later: work that is done at the call hides the waits that are missing.
  for (auto eager = random_() % 8; eager > 5; --eager) {
    if (!run_one(lock)) break;
  }
}

void Scheduler::finish(std::unique_lock<std::mutex>& lock, cudaStream_t stream) {
  while (!stream->queue.empty()) {
    if (!run_one(lock, is_late() ? stream : nullptr)) changed_.wait(lock);
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

bool Scheduler::run_one(std::unique_lock<std::mutex>& lock, CUstream_st* first) {
  if (executing_stream) return false;
  std::vector<CUstream_st*> candidates;
  for (const auto& [handle, stream] : streams) {
    if (!stream->busy && !stream->queue.empty()) candidates.push_back(stream.get());
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const CUstream_st* a, const CUstream_st* b) { return a->id < b->id; });
  std::shuffle(candidates.begin(), candidates.end(), random_);
  const auto preferred = std::find(candidates.begin(), candidates.end(), first);
  if (preferred != candidates.end()) std::iter_swap(candidates.begin(), preferred);
  // The stream that was asked first may wait for what another one has begun since.
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
    ++stream->known[stream->id];
    check(*stream, operation.name, operation.operands);
    lock.unlock();
    executing_stream = stream;
    operation.run();
    executing_stream = nullptr;
    const std::vector<Access> seen = operation.seen ? operation.seen() : std::vector<Access>();
    lock.lock();
    check(*stream, operation.name, seen);
    stream->queue.pop_front();
    stream->busy = false;
    clock_ms += 1.0;
    changed_.notify_all();
    return true;
  }
  return false;
}

// A past access is in order with this one if the stream knows that its operation is over.
void Scheduler::compare(const CUstream_st& stream, const Past& now, bool write,
                        const Segment& segment) {
  constexpr std::size_t kMostRaces = 100;
  const auto look = [&](const Past& past, bool past_writes) {
    if (!past.name || past == now) return;
    const auto known = stream.known.find(past.stream);
    if (known != stream.known.end() && known->second >= past.number) return;
    if (races.size() == kMostRaces) return;
    races.push_back(*now.name + " on stream " + std::to_string(now.stream) +
                    (write ? " writes" : " reads") + " what " + *past.name + " on stream " +
                    std::to_string(past.stream) + (past_writes ? " writes" : " reads") +
                    ", and nothing orders them");
  };
  look(segment.writer, true);
  if (!write) return;
  for (const Past& reader : segment.readers) look(reader, false);
}

// No segment reaches over `at`.
void Scheduler::split(const char* at) {
  auto next = past_.lower_bound(at);
  if (next == past_.begin()) return;
  auto& [begin, segment] = *std::prev(next);
  if (segment.end <= at) return;
  past_.emplace_hint(next, at, segment);
  segment.end = at;
}

void Scheduler::check(CUstream_st& stream, const std::string& name,
                      const std::vector<Access>& accesses) {
  const Past now{stream.id, stream.known[stream.id], &*names_.insert(name).first};
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const char* begin = static_cast<const char*>(access.data);
    const char* end = begin + access.bytes;
    split(begin);
    split(end);
    auto at = past_.lower_bound(begin);
    for (const char* byte = begin; byte < end;) {
      if (at == past_.end() || at->first > byte) {  // not accessed yet
        const char* until = at == past_.end() ? end : std::min(end, at->first);
        at = past_.emplace_hint(at, byte, Segment{until, {}, {}});
      }
      Segment& segment = at->second;
      compare(stream, now, access.write, segment);
      if (access.write) {
        segment.writer = now;
        segment.readers.clear();
      } else {
        std::erase_if(segment.readers, [&](const Past& past) { return past.stream == now.stream; });
        segment.readers.push_back(now);
      }
      byte = segment.end;
      ++at;
    }
    // Neighbours with the same past become one.
    auto first = past_.lower_bound(begin);
    if (first != past_.begin()) --first;
    for (auto next = std::next(first); next != past_.end() && first->first < end;) {
      const Segment& segment = next->second;
      if (first->second.end == next->first && first->second.writer == segment.writer &&
          first->second.readers == segment.readers) {
        first->second.end = segment.end;
        next = past_.erase(next);
      } else {
        first = next++;
      }
    }
  }
}

void Scheduler::forget_past(const void* data, std::size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  const char* end = begin + bytes;
  split(begin);
  split(end);
  past_.erase(past_.lower_bound(begin), past_.lower_bound(end));
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
  scheduler.loaded.clear();
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
