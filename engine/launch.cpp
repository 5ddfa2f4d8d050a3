#include "engine/launch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "engine/system_info.h"
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

std::unique_ptr<sharding::Rank> make_rank(const LaunchOptions& options, int r,
                                          std::unique_ptr<sharding::Communicator> gather,
                                          std::unique_ptr<sharding::Communicator> reduce) {
  auto rank = std::make_unique<sharding::Rank>();
  rank->rank = r;
  rank->world_size = options.world_size;
  rank->memory = options.memory ? options.memory(r) : std::make_unique<HeapAllocator>();
  rank->gather_communicator = std::move(gather);
  rank->reduce_communicator = std::move(reduce);
  const int threads = options.compute_threads();
  const bool own_cores = threads * options.world_size <= num_usable_cores();
  const auto stream_options = [&](const char* name, int num_threads) {
    return StreamOptions{name, r, num_threads, own_cores, options.hook, options.trace};
  };
  rank->compute_stream = make_cpu_compute_stream(stream_options("compute", threads));
  rank->gather_stream = make_cpu_worker_stream(stream_options("gather", 1));
  rank->reduce_stream = make_cpu_worker_stream(stream_options("reduce", 1));
  return rank;
}

}  // namespace

int LaunchOptions::compute_threads() const {
  if (threads_per_rank > 0) return threads_per_rank;
  return std::max(1, num_usable_cores() / world_size);
}

void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body) {
  CHECK(options.world_size >= 1, "a world of {} ranks", options.world_size);
  std::vector<std::unique_ptr<sharding::Communicator>> gather, reduce;
  if (options.world_size == 1) {
    gather.push_back(sharding::make_single_communicator());
    reduce.push_back(sharding::make_single_communicator());
  } else {
    gather = sharding::make_thread_communicators(options.world_size, options.peer_timeout);
    reduce = sharding::make_thread_communicators(options.world_size, options.peer_timeout);
  }
  FirstError first_error;
  const auto run_rank = [&](int r) {
    std::unique_ptr<sharding::Rank> rank;
    try {
      rank = make_rank(options, r, std::move(gather[r]), std::move(reduce[r]));
      rank->report_failure = [&](std::exception_ptr error) { first_error.set(std::move(error)); };
      body(*rank);
    } catch (const std::exception& error) {
      first_error.set(std::current_exception());
      if (!rank) return;
      // What `body` did outside of Rank::guard (building the model, say) stops the others too.
      rank->gather_communicator->abort(fmt::format("rank {} stopped: {}", r, error.what()));
      rank->reduce_communicator->abort(fmt::format("rank {} stopped: {}", r, error.what()));
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < options.world_size; ++r) threads.emplace_back(run_rank, r);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  first_error.rethrow();
}

}  // namespace sherd::engine
