/// Signals that ask a run to end before it has begun: while the program starts, processes join, and
/// texts are encoded. There is nothing to save, so all processes end at once, with code 75 and one
/// line.
///
///   alone           the signal's handler ends the process (engine/launch/stop_signals.h)
///   joining         the same in each process; only one prints
///   joined          a thread tells the others and calls `leave`; so do their threads
///   training        engine/launch/stop_signals.h
///
/// The thread also watches the process that started this one. If mpirun has ended, nothing else
/// would end this process, so it ends as after SIGTERM.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "sharding/processes/processes.h"

namespace sherd::engine {

/// For the first line of `main`.
void begin_early_stop();
/// From now on, the others notice if this process ends; an EarlyStop is about to handle signals.
void note_early_stops();

class EarlyStop {
 public:
  /// Tells the others how this process ends, and ends it. Called on this object's thread.
  using Leave = std::function<void(const sharding::ProcessEnd& end)>;
  /// `parent`: the process that started this one, 0 if its end doesn't matter. `noted`:
  /// take_noted_stop.
  struct Options {
    Leave leave;
    std::function<int()> parent;
    std::function<int()> noted;
  };
  EarlyStop(sharding::ControlLinks& links, Options options);
  ~EarlyStop();
  EarlyStop(const EarlyStop&) = delete;
  EarlyStop& operator=(const EarlyStop&) = delete;

  static Options of_this_process(Leave leave);

 private:
  void run();
  bool look();

  sharding::ControlLinks& links_;
  const Options options_;
  int parent_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace sherd::engine
