/// The implementation of machine.h: streams, points in them, and who executes what next. One lock for all.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/machine.h"

namespace fake_cuda {

/// Vector clock: how many operations of each stream are known to be over. Stream 0 is the host.
using Knowledge = std::map<int, std::int64_t>;
void join(Knowledge& into, const Knowledge& from);

/// One recording of an event.
struct Point {
  bool passed = false;
  double milliseconds = 0.0;
  Knowledge known;
};

struct Graph {
  std::vector<Operation> operations;
};

}  // namespace fake_cuda

struct CUstream_st {
  int id = 0, device = 0, priority = 0;
  struct Queued {
    fake_cuda::Operation operation;
    fake_cuda::Knowledge host;  // what the host knew when it enqueued
  };
  std::deque<Queued> queue;
  bool busy = false;
  fake_cuda::Knowledge known;
  std::shared_ptr<fake_cuda::Graph> capture;  // what is being recorded
  bool capture_broken = false;
};

struct CUevent_st {
  int device = 0;
  bool timed = false;
  std::shared_ptr<fake_cuda::Point> point;  // of the last recording
};

namespace fake_cuda {

class Scheduler {
 public:
  static Scheduler& get();

  std::mutex mutex;
  Machine machine{.seed = 2};  // until a test says otherwise: a late one

  // All with `lock` held, a lock of `mutex`.
  void enqueue(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation);
  /// Executes, this stream's work and others', until nothing is left of this one.
  void finish(std::unique_lock<std::mutex>& lock, cudaStream_t stream);
  /// The same of all streams of a device, of which others may be destroyed meanwhile.
  void finish_device(std::unique_lock<std::mutex>& lock, int device);
  /// Threads that wait for an operation's `ready` must look again.
  void changed() {
    ++num_changes_;
    changed_.notify_all();
  }
  void wait(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }
  /// Memory is given away or given back: what was done there before is over.
  void forget_past(const void* data, std::size_t bytes);
  /// All streams are over and gone: nothing that comes can race with what they did.
  void forget_history();

  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  struct Memory {
    std::size_t bytes = 0;
    int device = -1;  // -1: of the host, page-locked
  };
  std::map<const void*, Memory> memory;
  std::set<int> contexts;
  std::set<std::pair<int, std::string>> loaded;  // kernels of each device
  std::vector<std::string> races;
  int num_graphs = 0, num_communicators = 0, next_stream = 1;
  double clock_ms = 0.0;
  Knowledge host;  // of all host threads together: no false alarm where they meet on their own

 private:
  /// An operation that has touched something.
  struct Past {
    int stream = 0;
    std::int64_t number = 0;
    const std::string* name = nullptr;
    bool operator==(const Past&) const = default;
  };
  /// Bytes with the same past: who wrote them last, and who has read them since, one of each stream.
  struct Segment {
    const char* end = nullptr;
    Past writer;
    std::vector<Past> readers;
  };
  bool is_late() const { return machine.seed % 2 == 0; }
  bool run_one(std::unique_lock<std::mutex>& lock, CUstream_st* first = nullptr);
  bool run_one_of(const std::vector<CUstream_st*>& streams, std::unique_lock<std::mutex>& lock);
  void check(CUstream_st& stream, const std::string& name, const std::vector<Access>& accesses);
  void compare(const CUstream_st& stream, const Past& now, bool write, const Segment& segment);
  void split(const char* at);

  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::int64_t num_changes_ = 0;
  std::map<const char*, Segment> past_;  // by first byte
  std::set<std::string> names_;
  friend void start(const Machine& machine);
};

/// Whether the calling thread is in a host function of a stream.
bool in_host_function();

}  // namespace fake_cuda
