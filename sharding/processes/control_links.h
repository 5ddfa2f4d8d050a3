/// Short messages between the processes of a world, apart from tensors: who is there, what all agree on,
/// why the world ends, who has died.
///
/// Process 0 listens on TCP; every other process connects to it. A word goes to process 0, which passes
/// it on. A thread of its own reads and answers, so a process that computes or waits isn't taken for dead.
///
///   death    a connection that ends without a farewell aborts the world at once: a process that was
///            killed is named within milliseconds. So does one that is silent for longer than the
///            timeout, as a stopped process or a lost machine is.
///   abort    the first reason stays on every process.
///   secret   drawn by process 0, and part of the address, or given. Whoever connects has to say it within
///            a second, or is refused with that message. Nothing longer than 16 MiB is accepted.
///
/// Errors   PeerError.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sherd::sharding {

class Door;

class ControlLinks {
 public:
  struct Options {
    int process = 0, num_processes = 1;
    std::chrono::milliseconds timeout{60'000};
  };
  /// On process 0. Listens, calls `publish` with the address that the others connect to, and returns
  /// when all have connected. `loopback`: only on this machine.
  static std::unique_ptr<ControlLinks> listen(
      const Options& options, bool loopback,
      const std::function<void(const std::string& address)>& publish);
  /// On process 0, if all processes know the port and the secret in advance.
  static std::unique_ptr<ControlLinks> listen_at(const Options& options, bool loopback, int port,
                                                 const std::string& secret);
  /// On every other process.
  static std::unique_ptr<ControlLinks> connect(const Options& options, const std::string& address);
  /// Says farewell, unless the process is about to be considered dead: see `say`. Doesn't wait.
  ~ControlLinks();

  int process() const { return process_; }
  int num_processes() const { return num_processes_; }
  /// What a process is called in messages; "process 3" until then. A process that the others name tells
  /// them nothing, so all are told all names.
  void set_names(std::vector<std::string> names);
  /// How long another process may be silent, and how long a word of its may take.
  void set_timeout(std::chrono::milliseconds timeout);
  /// The second one alone: some read their data for long, and aren't silent meanwhile.
  void set_patience(std::chrono::milliseconds patience);

  /// What each process said under this name: nothing for one that is dead. Every process says a word
  /// under a name once.
  using Words = std::vector<std::optional<std::string>>;
  void say(const std::string& name, const std::string& word);
  /// Empty if it isn't complete by then. An abort doesn't end the waiting.
  std::optional<Words> heard(const std::string& name, std::chrono::milliseconds within);

  /// `say` and `heard` at once, with all processes alive.
  /// Errors   PeerError: the world was aborted, or a process didn't say it within the timeout.
  std::vector<std::string> all_gather(const std::string& name, const std::string& word);

  /// A notice for some processes, in the place of the one that came under this name before.
  void tell(const std::vector<int>& processes, const std::string& name, const std::string& notice);
  /// Nothing if none has come by then, or the world was aborted before.
  std::optional<std::string> told(const std::string& name, std::chrono::milliseconds within);

  /// Ends the world: the reason reaches every process. The first one stays.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// Whether it was aborted because a process has died: one that won't answer any more.
  bool by_death() const { return by_death_.load(std::memory_order_acquire); }
  /// Whether the others have taken this process for dead, and told it so: it was stopped, or too slow.
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }
  std::string reason() const;
  /// Called once, on a thread of this object or the one that aborts, after the world was aborted.
  void on_abort(std::function<void()> call);
  /// Called with the reason, at once and on a thread of this object, where a process has died: on the first
  /// process that lives, as far as is known there. Others may be about to be killed, or compute for long.
  void on_death(std::function<void(const std::string& reason)> call);

  /// Reads what has come and isn't read yet: before this process says that another one is late, since it may itself
  /// have been stopped, and been told so. Waits a few seconds at most. Not on a thread of this object.
  void catch_up();

  /// From now on a connection that ends is no death: this process is about to leave, and knows that all
  /// others are.
  void part();

 private:
  struct Link;
  static std::unique_ptr<ControlLinks> behind(const Options& options, const Door& door);
  void deliver(int process, const std::string& name, std::string_view notice);
  ControlLinks(const Options& options, std::vector<std::unique_ptr<Link>> links);

  void run();
  void read_from(Link& link);
  void read_all_from(Link& link);
  void catch_up_now();
  void handle(Link& link, char kind, std::string_view text);
  void lost(Link& link, const std::string& how);
  void hear(int process, const std::string& name, std::string word);
  std::string complete_locked(const std::string& name);
  void tell_all(const std::string& words);
  bool set_reason(const std::string& reason);
  void pass_on_abort(const std::string& reason);
  void send(Link& link, char kind, std::string_view text);
  void check_silence();
  std::string name_of(int process) const;

  const int process_, num_processes_;
  std::vector<std::unique_ptr<Link>>
      links_;  // of process 0: to each other process; else to process 0

  /// Held from when words are complete until all have been told them: whoever sees them here and then aborts
  /// must not be heard first.
  std::mutex telling_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> names_;
  std::chrono::milliseconds timeout_, patience_;
  std::map<std::string, Words> words_, complete_;
  std::map<std::string, std::string> notices_;
  std::vector<char> dead_;
  std::string reason_;
  std::function<void()> on_abort_;
  std::function<void(const std::string&)> on_death_;
  std::atomic<bool> aborted_{false}, by_death_{false}, given_up_{false};
  std::atomic<bool> parting_{false}, over_{false};
  std::uint64_t catch_ups_asked_ = 0, catch_ups_done_ = 0;
  int wake_ = -1;
  std::thread thread_;  // last: it starts when everything else is there
};

}  // namespace sherd::sharding
