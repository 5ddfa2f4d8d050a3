/// A stream does work in order; an event orders two streams. The schedule uses only these two and
/// doesn't depend on the device.
///
///   CPU   a worker stream is a thread with a queue. A compute stream has no queue: its work runs
///         at the call, on the calling thread and its team, because that thread has nothing else
///         to do.
///   CUDA  a CUDA stream and a CUDA event (core/cuda_device.h).
///
/// Errors. Work that throws on a compute stream throws to its caller. Work that throws on a worker
/// stream stops the stream: later work is dropped, and every event recorded after it carries the
/// error. Waiting for such an event rethrows the error (a worker stream that waits fails with it in
/// turn). So a failure reaches the rank's own thread without a hang.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace sherd {

class ThreadTeam;
class Trace;

enum class DeviceKind { kCpu, kCuda };

/// A point in a stream's work. Recording it again moves it; waiting for one that was never recorded
/// returns at once (as in CUDA).
class Event {
 public:
  /// What waiting for an event counts as: a number that the caller chooses, below kMostKinds.
  static constexpr std::size_t kMostKinds = 8;

  virtual ~Event() = default;
  std::size_t counts_as = 0;
};

/// Called at every boundary of a stream (before and after its work, at record and wait). Tests use
/// it to delay a stream; results must not change.
using BoundaryHook = std::function<void(std::string_view stream, std::string_view label)>;

/// What a rank's streams are for. A machine may implement each kind differently.
enum class StreamPurpose {
  kCompute,  ///< kernels
  kGather,   ///< all-gathers of parameters
  kReduce,   ///< reductions of gradients
  kCopy      ///< copies between host and device alongside all other work
};

struct StreamOptions {
  StreamPurpose purpose = StreamPurpose::kCompute;
  std::string name = "compute";  ///< for traces and hooks
  int rank = 0;
  int num_threads = 1;
  bool may_spin = false;  ///< compute threads spin briefly between loops: if each has its own core
  BoundaryHook hook;
  Trace* trace = nullptr;
};

class Stream {
 public:
  explicit Stream(StreamOptions options) : options_(std::move(options)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual DeviceKind device() const = 0;
  const std::string& name() const { return options_.name; }
  int rank() const { return options_.rank; }

  /// Host code, in this stream's order. `label` names it in traces and to the hook.
  virtual void run(std::string_view label, std::function<void()> work) = 0;
  /// Copies bytes in this stream's order. If the device has its own memory, source and target may
  /// each be in device or host memory. Host memory that isn't page-locked makes the caller wait.
  virtual void copy(const void* from, void* to, std::int64_t bytes);
  /// Calls `enqueue`, which only enqueues kernels on this stream. `key` names everything that they
  /// depend on, addresses included. So a GPU stream may keep them as a graph and launch that graph
  /// when an equal key comes.
  virtual void section(const std::string& /*key*/, const std::function<void()>& enqueue) {
    enqueue();
  }
  virtual bool keeps_sections() const { return false; }
  /// An event for streams of this stream's device.
  virtual std::unique_ptr<Event> make_event() const = 0;
  /// `event` marks everything enqueued so far.
  virtual void record(Event& event) = 0;
  /// Work enqueued from now on starts after the last recorded point of `event`.
  virtual void wait(const Event& event) = 0;
  /// Blocks the caller until everything enqueued is done; rethrows what it threw.
  virtual void synchronize() = 0;

  /// Total time that this stream was blocked in `wait`.
  virtual std::chrono::nanoseconds waited() const = 0;
  /// The part of it that counts as `kind`.
  virtual std::chrono::nanoseconds waited_for(std::size_t /*kind*/) const { return {}; }
  /// Total processor time of this stream's own thread (CPU worker streams).
  virtual std::chrono::nanoseconds cpu_time() const { return {}; }
  /// CPU streams: the threads that kernels on this stream may use. On a CUDA stream there is one,
  /// the caller's.
  virtual ThreadTeam& team() = 0;

  const StreamOptions& options() const { return options_; }

 private:
  StreamOptions options_;
};

std::unique_ptr<Stream> make_cpu_compute_stream(StreamOptions options);
std::unique_ptr<Stream> make_cpu_worker_stream(StreamOptions options);
std::unique_ptr<Event> make_cpu_event();

/// Marks what a stream does between construction and destruction, for traces.
class TraceSpan {
 public:
  TraceSpan(Stream& stream, std::string_view label);
  ~TraceSpan();

 private:
  Stream& stream_;
  std::string label_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace sherd
