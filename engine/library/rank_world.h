/// Ranks that live as long as their owner wants, and do what it asks of them.
///
/// A run of the program has a loop on each rank. A library's user has the loop instead, and calls
/// from one thread. Here each rank waits for the next piece of work and does it, inside Rank::guard.
///
///   RankWorld world(launch, options);
///   world.run([&](engine::Trainer& trainer, const sharding::Rank& rank) { trainer.load(); });
///
/// The first work must be a collective of all ranks: a rank that can't be started is noticed by the
/// others there. Waiting ranks use no processor time. Threads of the ranks block all signals.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/launch/launch.h"
#include "engine/trainer/trainer.h"

namespace sherd::library {

class RankWorld {
 public:
  using Work = std::function<void(engine::Trainer& trainer, const sharding::Rank& rank)>;

  RankWorld(engine::LaunchOptions launch, engine::TrainerOptions options);
  /// Ends the ranks, each after the work that it does.
  ~RankWorld();
  RankWorld(const RankWorld&) = delete;
  RankWorld& operator=(const RankWorld&) = delete;

  int world_size() const { return launch_.world_size(); }

  /// Does `work` on all ranks, each on its own thread, and returns when all have done it.
  /// Errors   the first of a rank, which ends all ranks; from then on, always that error.
  void run(const Work& work);

 private:
  void run_all();
  void serve(sharding::Rank& rank);
  bool take(std::int64_t number, Work& work);

  const engine::LaunchOptions launch_;
  const engine::TrainerOptions options_;
  std::mutex mutex_;
  std::condition_variable asked_, answered_;
  Work work_;
  std::int64_t number_ = 0;  // of the newest work; the first is 1
  int num_done_ = 0;         // ranks that have done it
  bool closes_ = false, has_failed_ = false, has_ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace sherd::library
