#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/stream.h"
#include "core/thread.h"
#include "core/thread_team.h"
#include "core/trace.h"

namespace sherd {
namespace {

using std::chrono::nanoseconds;

// Recorded points are numbered. `recorded` counts requested points, `completed` counts reached
// ones. A waiter takes `recorded` at its call and sleeps until `completed` has reached it.
class CpuEvent final : public Event {
 public:
  std::uint64_t announce() {
    std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void complete(std::uint64_t point, std::exception_ptr error) {
    // Notify under the lock: a waiter may destroy the event as soon as it has seen the point.
    std::lock_guard lock(mutex_);
    completed_ = std::max(completed_, point);
    error_ = std::move(error);
    reached_.notify_all();
  }
  std::uint64_t recorded() const {
    std::lock_guard lock(mutex_);
    return recorded_;
  }
  /// Returns how long it blocked; throws what the recording stream had thrown.
  nanoseconds wait_for(std::uint64_t point) const {
    std::unique_lock lock(mutex_);
    nanoseconds blocked{0};
    if (completed_ < point) {
      const auto begin = Clock::now();
      reached_.wait(lock, [&] { return completed_ >= point; });
      blocked = Clock::now() - begin;
    }
    if (error_) std::rethrow_exception(error_);
    return blocked;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  std::uint64_t recorded_ = 0;
  std::uint64_t completed_ = 0;
  std::exception_ptr error_;
};

const CpuEvent& cpu(const Event& event) {
  return dynamic_cast<const CpuEvent&>(event);
}
CpuEvent& cpu(Event& event) {
  return dynamic_cast<CpuEvent&>(event);
}

class ComputeStream final : public Stream {
 public:
  explicit ComputeStream(StreamOptions options)
      : Stream(std::move(options)), team_(this->options().num_threads, this->options().may_spin) {}

  DeviceKind device() const override { return DeviceKind::kCpu; }
  void run(std::string_view label, std::function<void()> work) override {
    boundary(label);
    work();
    boundary(label);
  }
  std::unique_ptr<Event> make_event() const override { return make_cpu_event(); }
  void record(Event& event) override {
    boundary("record");
    cpu(event).complete(cpu(event).announce(), nullptr);
  }
  void wait(const Event& event) override {
    const auto begin = Clock::now();
    const nanoseconds blocked = cpu(event).wait_for(cpu(event).recorded());
    waited_for_.at(event.counts_as) += blocked;
    if (blocked.count() > 0 && options().trace) {
      options().trace->add(rank(), name(), "wait", begin, begin + blocked);
    }
    boundary("wait");
  }
  void synchronize() override {}
  nanoseconds waited() const override {
    return std::accumulate(waited_for_.begin(), waited_for_.end(), nanoseconds(0));
  }
  nanoseconds waited_for(std::size_t kind) const override { return waited_for_.at(kind); }
  ThreadTeam& team() override { return team_; }

 private:
  void boundary(std::string_view label) const {
    if (options().hook) options().hook(name(), label);
  }
  ThreadTeam team_;
  std::array<nanoseconds, Event::kMostKinds> waited_for_{};
};

class WorkerStream final : public Stream {
 public:
  explicit WorkerStream(StreamOptions options)
      : Stream(std::move(options)),
        team_(1),
        thread_(start_thread(fmt::format("for the {} stream of rank {}", name(), rank()),
                             [this] { work(); })) {}
  ~WorkerStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  DeviceKind device() const override { return DeviceKind::kCpu; }
  void run(std::string_view label, std::function<void()> work) override {
    enqueue({std::string(label), std::move(work)});
  }
  std::unique_ptr<Event> make_event() const override { return make_cpu_event(); }
  void record(Event& event) override {
    CpuEvent& target = cpu(event);
    const std::uint64_t point = target.announce();
    enqueue({"record", [this, &target, point] { target.complete(point, error_); }, true});
  }
  void wait(const Event& event) override {
    const CpuEvent& target = cpu(event);
    const std::uint64_t point = target.recorded();
    enqueue({"wait", [this, &target, point] {
               waited_for_.at(target.counts_as) += target.wait_for(point).count();
             }});
  }
  void synchronize() override {
    CpuEvent done;
    record(done);
    done.wait_for(done.recorded());
  }
  nanoseconds waited() const override {
    nanoseconds total{0};
    for (const auto& of_kind : waited_for_) total += nanoseconds(of_kind.load());
    return total;
  }
  nanoseconds waited_for(std::size_t kind) const override {
    return nanoseconds(waited_for_.at(kind).load());
  }
  nanoseconds cpu_time() const override {
    clockid_t clock{};
    if (pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock) != 0) {
      return {};
    }
    timespec time{};
    clock_gettime(clock, &time);
    return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
  }
  ThreadTeam& team() override { return team_; }

 private:
  struct Item {
    std::string label;
    std::function<void()> work;
    bool even_after_error = false;
  };

  void enqueue(Item item) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
    }
    changed_.notify_all();
  }

  void work() {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      if (error_ && !item.even_after_error) continue;
      try {
        if (options().hook) options().hook(name(), item.label);
        const auto begin = Clock::now();
        item.work();
        if (options().trace && item.label != "record") {
          options().trace->add(rank(), name(), item.label, begin, Clock::now());
        }
        if (options().hook && item.label != "record") options().hook(name(), item.label);
      } catch (...) {
        error_ = std::current_exception();
        if (item.even_after_error) item.work();  // a hook threw: whoever waits must learn of it
      }
    }
  }

  ThreadTeam team_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::exception_ptr error_;  // touched by the worker's thread only
  std::array<std::atomic<std::int64_t>, Event::kMostKinds> waited_for_{};
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace

void Stream::copy(const void* from, void* to, std::int64_t bytes) {
  if (bytes == 0 || from == to) return;
  run("copy", [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}

std::unique_ptr<Stream> make_cpu_compute_stream(StreamOptions options) {
  return std::make_unique<ComputeStream>(std::move(options));
}
std::unique_ptr<Stream> make_cpu_worker_stream(StreamOptions options) {
  return std::make_unique<WorkerStream>(std::move(options));
}
std::unique_ptr<Event> make_cpu_event() {
  return std::make_unique<CpuEvent>();
}

TraceSpan::TraceSpan(Stream& stream, std::string_view label)
    : stream_(stream), begin_(Clock::now()) {
  if (stream.options().trace && stream.options().trace->active()) label_ = label;
}

TraceSpan::~TraceSpan() {
  if (!label_.empty()) {
    stream_.options().trace->add(stream_.rank(), stream_.name(), label_, begin_, Clock::now());
  }
}

}  // namespace sherd
