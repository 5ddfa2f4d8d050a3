/// Runs a run's hooks: shell commands at its events (block `hooks` of a recipe).
///
///   on_start       before the first step
///   on_step        after every step_interval-th step; a newer one replaces one that still waits
///   on_evaluation  after an evaluation
///   on_save        after a checkpoint is complete; with retries. Retention waits for it: see
///                  `may_remove`
///   on_end         after everything else, with exit code 0, 75 or 130
///   on_failure     the same with any other code
///
/// Commands run one at a time, in the order of the events, on a thread of their own. Training
/// doesn't wait for them, only the end of a run does. What they do never changes the run: a failure
/// is one warning, and their output goes to hooks.log (log.h). event.h has what they are told.
///
/// Checkpoints whose on_save has not succeeded when a run ends are delivered when it starts again
/// (delivered.h).
///
/// Threads   events and waits: any
/// Errors    none: problems are passed to `say`
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "engine/hooks/command.h"
#include "engine/hooks/delivered.h"
#include "engine/hooks/event.h"
#include "engine/hooks/log.h"
#include "engine/recipe/hook_keys.h"

namespace sherd::engine {

struct HookOptions {
  using Clock = std::chrono::steady_clock;

  HookKeys keys;
  HookFacts facts;  ///< the run's name, folder and number of steps
  checkpoint::Disk* disk = &checkpoint::posix_disk();
  const checkpoint::OutputLock* lock = nullptr;   ///< of the run's folder
  std::function<void(const std::string&)> say{};  ///< receives a line for the user
  /// When waiting has to end, if it has to; asked again and again once training is over. Commands
  /// that are running then are killed. May be empty.
  std::function<std::optional<Clock::time_point>()> deadline{};
  std::function<void()> waited{};  ///< after a wait that isn't the last: `deadline` counts no more
  std::chrono::milliseconds first_pause{1000};  ///< before the first retry of on_save
};

class Hooks {
 public:
  explicit Hooks(HookOptions options);
  ~Hooks();  ///< kills what runs, and forgets the rest
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// The first event, with `step` steps done. Also delivers checkpoints of earlier starts.
  void begin(std::int64_t step);
  /// Training continues from an earlier step, whose later checkpoints are gone.
  void rewound(std::int64_t step);
  void step(std::int64_t step, double loss);
  void evaluation(std::int64_t step, double val_loss);
  void saved(std::int64_t step);
  /// The last event. Returns when all commands have ended. `error` is empty at success. A second
  /// call only waits.
  void end(int exit_code, const std::string& error);

  /// Returns when on_save has ended for all checkpoints so far.
  void wait_for_saves();
  /// Whether on_save has succeeded for this checkpoint, or has been given up.
  bool may_remove(const checkpoint::Checkpoint& found);

 private:
  struct Job {
    HookEvent event = HookEvent::kStart;
    HookFacts facts{};
  };
  const std::string& command_of(HookEvent event) const;
  void push(HookEvent event, const HookFacts& facts);
  void run();
  void perform(Job job);
  void deliver(Job job);
  CommandEnd run_once(const Job& job);
  void warn(const Job& job, const CommandEnd& end, const std::string& more = "");
  bool pause(int attempt);
  bool is_over();
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const Done& done);
  std::chrono::milliseconds timeout() const { return std::chrono::seconds(options_.keys.timeout); }

  const HookOptions options_;
  HookLog log_;  // used by the thread alone
  Delivered delivered_;

  std::mutex mutex_;
  std::condition_variable changed_;
  HookFacts facts_;
  std::deque<Job> jobs_;
  std::optional<HookEvent> running_;
  bool stopping_ = false;
  bool finishing_ = false;
  std::set<std::string> given_up_;  // by save_uuid
  std::int64_t num_replaced_ = 0, num_dropped_ = 0;
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace sherd::engine
