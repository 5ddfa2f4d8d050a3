/// Processes with a GPU each (sharding/processes/gpus_of_processes.h), over the fake NCCL: threads that are
/// processes to one another, each with connections and communicators of its own.
#pragma once

#include <future>
#include <numeric>

#include "sharding/processes/gpus_of_processes.h"
#include "tests/fake_cuda/ranks.h"

namespace sherd::sharding {

inline constexpr std::chrono::milliseconds kToConnect{20'000};

/// A world of several processes; process p has device p.
class NcclWorld {
 public:
  NcclWorld(int count, std::chrono::milliseconds timeout) {
    std::promise<std::string> promise;
    const std::shared_future<std::string> address = promise.get_future().share();
    links_.resize(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int process = 0; process < count; ++process) {
      threads.emplace_back([&, process] {
        const ControlLinks::Options options{process, count, kToConnect};
        links_[static_cast<std::size_t>(process)] =
            process > 0 ? ControlLinks::connect(options, address.get())
                        : ControlLinks::listen(options, true,
                                               [&](const auto& text) { promise.set_value(text); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int process = 0; process < count; ++process) {
      rendezvous_.push_back(make_nccl_rendezvous(links(process), process, timeout));
    }
  }
  ~NcclWorld() {
    rendezvous_.clear();
    for (const auto& links : links_) links->part();
  }

  ControlLinks& links(int process) { return *links_[static_cast<std::size_t>(process)]; }
  Rendezvous& rendezvous(int process) { return *rendezvous_[static_cast<std::size_t>(process)]; }

  void run(const GroupOptions& options, const std::function<void(Member&)>& body) {
    std::vector<int> devices(links_.size());
    std::iota(devices.begin(), devices.end(), 0);
    run_on_gpus(
        static_cast<int>(links_.size()), devices,
        [this](int rank) -> Rendezvous& { return rendezvous(rank); }, options, body);
  }

 private:
  std::vector<std::unique_ptr<ControlLinks>> links_;
  std::vector<std::shared_ptr<Rendezvous>> rendezvous_;
};

inline CommunicatorKind processes(int count, std::uint64_t seed) {
  const auto run = [=](const GroupOptions& options, const std::function<void(Member&)>& body) {
    fake_cuda::start({.num_devices = count, .seed = seed});
    NcclWorld(count, options.timeout).run(options, body);
    EXPECT_EQ(fake_cuda::left_behind(), "");
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
  };
  return {.name = "ncclProcessesSeed" + std::to_string(seed) + "World",
          .world_size = count,
          .adds_in_rank_order = false,
          .run = run,
          .has_trees = false,
          .has_kernels = false,
          .compares_calls = false};
}

}  // namespace sherd::sharding
