#include "engine/launch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "engine/system_info.h"
#include "sharding/comm/nccl.h"
#include "sharding/comm/shared_device.h"
#include "sharding/comm/single.h"

namespace sherd::engine {
namespace {

// Remembers who failed first; everybody else's error is only a consequence.
class FirstError {
 public:
  void set(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

std::unique_ptr<Stream> stream_for(const LaunchOptions& options, int device,
                                   const StreamOptions& stream) {
  if (options.make_stream) return options.make_stream(stream);
  if (options.device == DeviceKind::kCuda) {
    CudaStreamOptions cuda = options.cuda;
    cuda.device = device;
    return make_cuda_stream(stream, cuda);
  }
  return stream.name == "compute" ? make_cpu_compute_stream(stream)
                                  : make_cpu_worker_stream(stream);
}

std::unique_ptr<sharding::Rank> make_rank(const LaunchOptions& options, int r, int device,
                                          std::unique_ptr<sharding::Communicator>& gather,
                                          std::unique_ptr<sharding::Communicator>& reduce) {
  auto rank = std::make_unique<sharding::Rank>();
  rank->rank = r;
  rank->world_size = options.world_size;
  if (options.device == DeviceKind::kCuda) {
    use_cuda_device(device);
    CHECK(options.memory && options.host_memory, "ranks on GPUs without memory of their own");
  }
  rank->memory = options.memory ? options.memory(r) : std::make_unique<HeapAllocator>();
  const int threads = options.compute_threads();
  const bool own_cores = threads * options.world_size <= num_usable_cores();
  const auto make_stream = [&options, r, device, own_cores](const std::string& name,
                                                            int num_threads) {
    const StreamOptions stream{name, r, num_threads, own_cores, options.hook, options.trace};
    return stream_for(options, device, stream);
  };
  if (options.host_memory) {
    rank->host_memory = options.host_memory(r);
    rank->make_copy_stream = [make_stream](const std::string& name) {
      return make_stream(name, 1);
    };
  }
  rank->compute_stream = make_stream("compute", threads);
  rank->gather_stream = make_stream("gather", 1);
  rank->reduce_stream = make_stream("reduce", 1);
  // Last: until here they are the caller's, who aborts them if this fails.
  rank->gather_communicator = std::move(gather);
  rank->reduce_communicator = std::move(reduce);
  return rank;
}

// The GPU of every rank; on the CPU nobody asks.
std::vector<int> devices_of(const LaunchOptions& options) {
  std::vector<int> devices(static_cast<std::size_t>(options.world_size), 0);
  if (options.device == DeviceKind::kCpu) return devices;
  require_cuda_devices(1);
  const auto num_devices = static_cast<int>(cuda_system().devices.size());
  for (int r = 0; r < options.world_size; ++r) {
    devices[r] = device_of_rank(r, options.world_size, num_devices, options.share_device);
  }
  return devices;
}

using Communicators = std::vector<std::unique_ptr<sharding::Communicator>>;

Communicators make_communicators(const LaunchOptions& options, const std::vector<int>& devices) {
  if (options.world_size == 1) {
    Communicators one;
    one.push_back(sharding::make_single_communicator());
    return one;
  }
  if (options.device == DeviceKind::kCpu) {
    return sharding::make_thread_communicators(options.world_size, options.peer_timeout);
  }
  return options.share_device
             ? sharding::make_shared_device_communicators(options.world_size, options.peer_timeout)
             : sharding::make_nccl_communicators(devices);
}

}  // namespace

int device_of_rank(int rank, int world_size, int num_devices, bool share_device) {
  if (share_device) return 0;  // ranks read each other's memory
  if (world_size > num_devices) {
    throw UsageError(
        "{} ranks need a GPU each, but this machine shows {}; use fewer ranks, or --share-device "
        "to put several ranks on one GPU",
        world_size, num_devices);
  }
  return rank;
}

int LaunchOptions::compute_threads() const {
  if (device == DeviceKind::kCuda) return 1;  // the thread that fills the queues
  if (threads_per_rank > 0) return threads_per_rank;
  return std::max(1, num_usable_cores() / world_size);
}

void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body) {
  CHECK(options.world_size >= 1, "a world of {} ranks", options.world_size);
  const std::vector<int> devices = devices_of(options);
  Communicators gather = make_communicators(options, devices);
  Communicators reduce = make_communicators(options, devices);
  FirstError first_error;
  const auto run_rank = [&](int r) {
    std::unique_ptr<sharding::Rank> rank;
    sharding::Communicator& own_gather = *gather[r];
    sharding::Communicator& own_reduce = *reduce[r];
    try {
      rank = make_rank(options, r, devices[r], gather[r], reduce[r]);
      rank->report_failure = [&](std::exception_ptr error) { first_error.set(std::move(error)); };
      body(*rank);
    } catch (const std::exception& error) {
      first_error.set(std::current_exception());
      // What happened outside of Rank::guard (no memory for the rank, say) stops the others too.
      own_gather.abort(fmt::format("rank {} stopped: {}", r, error.what()));
      own_reduce.abort(fmt::format("rank {} stopped: {}", r, error.what()));
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < options.world_size; ++r) threads.emplace_back(run_rank, r);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  first_error.rethrow();
}

}  // namespace sherd::engine
