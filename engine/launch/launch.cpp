#include "engine/launch/launch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/offload_home.h"
#include "core/thread.h"
#include "engine/launch/memory_nodes.h"
#include "engine/launch/rank_watch.h"
#include "engine/launch/system_info.h"
#include "sharding/comm/flight_recorder.h"
#include "sharding/comm/single.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::engine {
namespace {

// Remembers the first failure; other ranks' errors are only consequences.
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
                                          std::shared_ptr<sharding::Rendezvous> rendezvous) {
  const Machine& machine = *options.machine;
  machine.bind_rank(r, options.world_size());
  auto rank = std::make_unique<sharding::Rank>();
  rank->rank = r;
  rank->mesh = options.mesh;
  rank->groups = std::make_unique<sharding::ProcessGroups>(options.mesh, r, std::move(rendezvous));
  const bool separate_memory = machine.traits().separate_memory;
  SHERD_CHECK(!separate_memory || (options.plan && options.host_plan),
              "ranks on a device with memory of its own need plans");
  rank->memory =
      options.plan ? machine.make_memory(options.plan(r)) : std::make_unique<HeapAllocator>();
  if (separate_memory) rank->host_memory = machine.make_host_memory(options.host_plan(r));
  constexpr sharding::Purpose kStaged[] = {sharding::Purpose::kReduce, sharding::Purpose::kTensor};
  for (const BufferSpec& buffer :
       sharding::staging_buffers(options.mesh, machine.traits().staging_bytes)) {
    const sharding::Purpose purpose = kStaged[rank->staging.size()];
    rank->staging.push_back(rank->memory->acquire(buffer));
    rank->groups->stage_in(rank->staging.back().tensor(), purpose);
  }
  rank->host_threads = options.host_threads();
  const int threads = options.compute_threads();
  const bool own_cores =
      threads * machine.ranks_here(options.world_size()).on_host <= num_usable_cores();
  rank->make_stream = [&options, r, threads, own_cores](StreamPurpose purpose,
                                                        const std::string& name) {
    return options.machine->make_stream(
        {.purpose = purpose,
         .name = name,
         .rank = r,
         .num_threads = purpose == StreamPurpose::kCompute ? threads : 1,
         .may_spin = own_cores,
         .hook = options.hook,
         .trace = options.trace});
  };
  rank->compute_stream = rank->make_stream(StreamPurpose::kCompute, "compute");
  rank->gather_stream = rank->make_stream(StreamPurpose::kGather, "gather");
  rank->reduce_stream = rank->make_stream(StreamPurpose::kReduce, "reduce");
  if (options.offload_home) {
    rank->offload_home = options.offload_home(*rank);
    rank->offload_home->attach(*rank->memory);
  }
  return rank;
}

// Must not throw: in a rank's thread, nothing would catch it.
std::string reason_of_stop(int rank, const char* error) try {
  return fmt::format("rank {} stopped: {}", rank, error);
} catch (const std::bad_alloc&) {
  return "no memory";  // so short that it takes none
}

}  // namespace

int threads_of_rank(DeviceKind device, int asked, int world_size) {
  if (device == DeviceKind::kCuda) return 1;
  if (asked > 0) return asked;
  return std::max(1, num_usable_cores() / world_size);
}

int LaunchOptions::compute_threads() const {
  return threads_of_rank(machine->traits().kind, threads_per_rank, world_size());
}

int LaunchOptions::host_threads() const {
  if (threads_per_rank > 0) return threads_per_rank;
  return std::max(1, num_usable_cores() / machine->ranks_here(world_size()).on_host);
}

void run_ranks(const LaunchOptions& options, const std::function<void(sharding::Rank&)>& body) {
  SHERD_CHECK(options.world_size() >= 1, "a world of {} ranks", options.world_size());
  const auto rendezvous = options.world_size() == 1
                              ? sharding::make_single_rendezvous()
                              : options.machine->make_rendezvous(options.peer_timeout);
  const RanksHere here = options.machine->ranks_here(options.world_size());
  FirstError first_error;
  RankWatch watch({.on_stuck = options.on_stuck,
                   .stop_asked = options.stop_asked,
                   .on_calls = options.on_calls});
  const auto run_rank = [&](int r) {
    std::unique_ptr<sharding::Rank> rank;
    try {
      rank = make_rank(options, r, rendezvous);
      rank->report_failure = [&](const std::exception_ptr& error) {
        watch.failed(error);
        first_error.set(error);
      };
      watch.began(r, rank->groups->recorder());
      body(*rank);
    } catch (const std::exception& error) {
      watch.failed(std::current_exception());
      first_error.set(std::current_exception());
      if (rank && options.on_calls && dynamic_cast<const PeerError*>(&error) != nullptr) {
        options.on_calls(r, rank->groups->recorder().text());
      }
      // What happened outside of Rank::guard (no memory for the rank, say) stops the others too.
      rendezvous->abort(reason_of_stop(r, error.what()));
    }
    watch.ended(r);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(here.count));
  int started = 1;  // the first rank is this thread
  try {
    for (; started < here.count; ++started) {
      const int r = here.first + started;
      threads.push_back(start_thread(fmt::format("for rank {} of {}", r, options.world_size()),
                                     [&run_rank, r] { run_rank(r); }));
    }
  } catch (const std::exception& error) {
    // Ranks that have started would wait for ranks that never will.
    first_error.set(std::current_exception());
    rendezvous->abort(error.what());
  }
  const KeptCores kept;  // this thread continues after its rank
  if (started == here.count) run_rank(here.first);
  for (std::thread& thread : threads) thread.join();
  first_error.rethrow();
}

}  // namespace sherd::engine
