#include <array>
#include <deque>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "core/cuda_device.h"
#include "core/cuda_event.h"
#include "core/offload_home.h"
#include "core/thread_team.h"

namespace sherd {
namespace {

using std::chrono::nanoseconds;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(OwnedCudaEvent event) : event_(std::move(event)) {}
  const OwnedCudaEvent& get() const { return event_; }
  void record(cudaStream_t stream, bool is_communication) {
    event_.record(stream);
    is_communication_ = is_communication;
  }
  bool is_communication() const { return is_communication_; }

 private:
  OwnedCudaEvent event_;
  bool is_communication_ = false;
};

// How long a stream waited for communication, or communicated itself: measured by a timed event
// before and after each. They are read once the device has passed them, and never waited for.
class WaitMeter {
 public:
  template <class Wait>
  void around(cudaStream_t stream, std::size_t kind, Wait&& wait) {
    Pair pair = take();
    pair.kind = kind;
    pair.begin.record(stream);
    wait();
    pair.end.record(stream);
    pending_.push_back(std::move(pair));
    if (pending_.size() > kMany) collect();
  }
  nanoseconds total() {
    collect();
    return std::accumulate(totals_.begin(), totals_.end(), nanoseconds(0));
  }
  nanoseconds total_of(std::size_t kind) {
    collect();
    return totals_.at(kind);
  }

 private:
  static constexpr std::size_t kMany = 256;
  struct Pair {
    std::size_t kind = 0;  // Event::counts_as
    OwnedCudaEvent begin{cudaEventDefault}, end{cudaEventDefault};
  };
  Pair take() {
    if (free_.empty()) return {};
    Pair pair = std::move(free_.back());
    free_.pop_back();
    return pair;
  }
  void collect() {
    while (!pending_.empty()) {
      if (!pending_.front().end.passed()) return;
      Pair pair = std::move(pending_.front());
      pending_.pop_front();
      totals_.at(pair.kind) +=
          nanoseconds(static_cast<std::int64_t>(pair.begin.milliseconds_until(pair.end) * 1e6));
      free_.push_back(std::move(pair));
    }
  }
  std::deque<Pair> pending_;
  std::vector<Pair> free_;
  std::array<nanoseconds, Event::kMostKinds> totals_{};
};

// What host code in the queue threw first. Shared with the queue, which may outlive a call.
struct HostError {
  std::mutex mutex;
  std::exception_ptr error;

  bool has() {
    std::lock_guard lock(mutex);
    return error != nullptr;
  }
  void set(std::exception_ptr thrown) {
    std::lock_guard lock(mutex);
    if (!error) error = std::move(thrown);
  }
  void rethrow() {
    std::lock_guard lock(mutex);
    if (error) std::rethrow_exception(error);
  }
};

struct HostWork {
  std::function<void()> work;
  std::shared_ptr<HostError> errors;
};

void run_host_work(void* data) {
  const std::unique_ptr<HostWork> item(static_cast<HostWork*>(data));
  if (item->errors->has()) return;
  try {
    item->work();
  } catch (...) {
    item->errors->set(std::current_exception());
  }
}

// Work that others wait for goes before kernels that fill the device: gathers and reductions.
int priority_of(StreamPurpose purpose) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
             "cudaDeviceGetStreamPriorityRange");
  const bool communicates = purpose == StreamPurpose::kGather || purpose == StreamPurpose::kReduce;
  return communicates ? greatest : least;
}

class QueueOnDevice final : public CudaStream {
 public:
  QueueOnDevice(StreamOptions options, CudaStreamOptions cuda)
      : CudaStream(std::move(options)), cuda_(cuda), team_(1) {
    use_cuda_device(cuda.device);
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority_of(this->options().purpose)),
               "cudaStreamCreateWithPriority");
    mailbox_ = pinned_memory(kMailboxBytes);
  }
  ~QueueOnDevice() override {
    cudaSetDevice(cuda_.device);
    cudaStreamSynchronize(stream_);
    graphs_.clear();
    cudaStreamDestroy(stream_);
  }

  const CudaStreamOptions& cuda() const override { return cuda_; }
  CUstream_st* handle() const override { return stream_; }
  void* mailbox() override { return mailbox_.get(); }

  void run(std::string_view label, std::function<void()> work) override {
    boundary(label);
    enqueue(std::move(work));
    boundary(label);
  }
  void copy(const void* from, void* to, std::int64_t bytes) override {
    if (bytes == 0 || from == to) return;
    boundary("copy");
    use_cuda_device(cuda_.device);  // a checkpoint's copier may never have talked to it
    check_cuda(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_),
        "cudaMemcpyAsync");
    boundary("copy");
  }
  // The first time, the work is enqueued directly, since libraries may set something up then. The
  // second time, it is recorded.
  void section(const std::string& key, const std::function<void()>& enqueue) override {
    if (!keeps_sections()) return enqueue();
    Graph& graph = graphs_[key];
    if (graph.seen && !graph.executable) graph.executable = record_graph(enqueue);
    if (!graph.seen) enqueue();
    graph.seen = true;
    if (graph.executable) {
      check_cuda(cudaGraphLaunch(graph.executable.get(), stream_), "cudaGraphLaunch");
    }
  }
  bool keeps_sections() const override { return cuda_.graphs && !options().hook; }
  std::unique_ptr<Event> make_event() const override {
    return std::make_unique<CudaEvent>(OwnedCudaEvent(cudaEventDisableTiming));
  }
  void record(Event& event) override {
    boundary("record");
    dynamic_cast<CudaEvent&>(event).record(stream_, is_communication());
  }
  void wait(const Event& event) override {
    const auto& awaited = dynamic_cast<const CudaEvent&>(event);
    const auto enqueue_wait = [&] {
      check_cuda(cudaStreamWaitEvent(stream_, awaited.get().get(), 0), "cudaStreamWaitEvent");
    };
    const bool is_measured = awaited.is_communication() || event.counts_as == kWaitsForState;
    is_measured ? waits_.around(stream_, event.counts_as, enqueue_wait) : enqueue_wait();
    boundary("wait");
  }
  void communicate(std::size_t kind, const std::function<void()>& calls) override {
    waits_.around(stream_, kind, calls);
  }
  void synchronize() override {
    const cudaError_t status = cudaStreamSynchronize(stream_);
    errors_->rethrow();
    check_cuda(status, "cudaStreamSynchronize");
  }
  // Copies of tokens from the host also block a stream, but aren't counted.
  nanoseconds waited() const override { return waits_.total(); }
  nanoseconds waited_for(std::size_t kind) const override { return waits_.total_of(kind); }
  ThreadTeam& team() override { return team_; }

 private:
  struct DestroyGraph {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Executable = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;
  struct Graph {
    bool seen = false;
    Executable executable;
  };

  Executable record_graph(const std::function<void()>& enqueue) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);  // the stream works on; what was recorded is dropped
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // what the broken recording left isn't the next launch's
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "cudaGraphInstantiate");
    return Executable(executable);
  }

  void enqueue(std::function<void()> work) {
    auto item = std::make_unique<HostWork>(HostWork{std::move(work), errors_});
    check_cuda(cudaLaunchHostFunc(stream_, run_host_work, item.get()), "cudaLaunchHostFunc");
    item.release();  // the queue's from here on
  }
  bool is_communication() const {
    return options().purpose == StreamPurpose::kGather ||
           options().purpose == StreamPurpose::kReduce;
  }
  // A delay must hold up the device's queue, not the thread that fills it.
  void boundary(std::string_view label) {
    if (!options().hook) return;
    enqueue([this, label = std::string(label)] { options().hook(name(), label); });
  }

  CudaStreamOptions cuda_;
  ThreadTeam team_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<void> mailbox_;
  std::shared_ptr<HostError> errors_ = std::make_shared<HostError>();
  mutable WaitMeter waits_;
  std::unordered_map<std::string, Graph> graphs_;
};

}  // namespace

std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions options, CudaStreamOptions cuda) {
  return std::make_unique<QueueOnDevice>(std::move(options), cuda);
}

}  // namespace sherd
