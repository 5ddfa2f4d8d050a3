/// Short messages between the processes of a world, apart from tensors: who is there, what all
/// agree on, why the world ends, and who has died.
///
/// Process 0 listens on TCP; every other process connects to it. A word goes to process 0, which
/// forwards it. A separate thread reads and answers, so a process that computes or waits isn't
/// considered dead.
///
///   death    a connection that ends without a farewell aborts the world at once: a killed process
///            is named within milliseconds. A process that is silent for longer than the timeout
///            aborts it too, for example a stopped process or a lost machine.
///   abort    the first reason is kept on every process.
///   secret   drawn by process 0 and part of the address, or given. A process that connects must
///            send it within a second, or is refused with that message. No message longer than 16
///            MiB is accepted.
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
  /// On process 0. Listens, calls `publish` with the address for the others, and returns when all
  /// have connected. `loopback`: only on this machine.
  static std::unique_ptr<ControlLinks> listen(
      const Options& options, bool loopback,
      const std::function<void(const std::string& address)>& publish);
  /// On process 0, if all processes know the port and the secret in advance.
  static std::unique_ptr<ControlLinks> listen_at(const Options& options, bool loopback, int port,
                                                 const std::string& secret);
  /// On every other process.
  static std::unique_ptr<ControlLinks> connect(const Options& options, const std::string& address);
  /// Sends a farewell, unless the process is about to be considered dead: see `say`. Doesn't wait.
  ~ControlLinks();

  int process() const { return process_; }
  int num_processes() const { return num_processes_; }
  /// Names of the processes for messages; until then "process 3". A process that others name can't
  /// send them its name, so everyone gets all names.
  void set_names(std::vector<std::string> names);
  /// How long another process may be silent. A word from it is waited for at least that long.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Only the second: some processes read data for a long time, and aren't silent meanwhile.
  void set_patience(std::chrono::milliseconds patience);

  /// The word that each process said under this name; empty for a dead process. Every process says
  /// one word per name.
  using Words = std::vector<std::optional<std::string>>;
  void say(const std::string& name, const std::string& word);
  /// Empty if the words aren't complete within this time. An abort doesn't end the wait.
  std::optional<Words> heard(const std::string& name, std::chrono::milliseconds within);

  /// `say` and `heard` at once, with all processes alive. A name may be used again.
  /// Errors   PeerError: the world was aborted, or a process didn't say it within the timeout.
  std::vector<std::string> all_gather(const std::string& name, const std::string& word);

  /// Sends a notice to some processes. It replaces the previous notice of this name.
  void tell(const std::vector<int>& processes, const std::string& name, const std::string& notice);
  /// Empty if none has come within this time, or the world was aborted before.
  std::optional<std::string> told(const std::string& name, std::chrono::milliseconds within);

  /// Ends the world: the reason reaches every process. The first reason is kept.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// Whether the world was aborted because a process died, that is, no longer answers.
  bool by_death() const { return by_death_.load(std::memory_order_acquire); }
  /// Whether the others considered this process dead and told it so: it was stopped, or too slow.
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }
  std::string reason() const;
  /// Called once, on a thread of this object or the one that aborts, after the world was aborted.
  void on_abort(std::function<void()> call);
  /// Called with the reason when a process has died, at once and on a thread of this object. It is
  /// called on the first process that is alive, as far as this process knows. Others may be about
  /// to be killed, or compute for a long time.
  void on_death(std::function<void(const std::string& reason)> call);

  /// Reads messages that have arrived but aren't read yet. Call it before this process reports
  /// another one as late: it may itself have been stopped, and been told so. Waits a few seconds at
  /// most. Not on a thread of this object.
  void catch_up();

  /// The number of a world of ranks, for names of its words and notices: a process may make several,
  /// one after another, and all processes make theirs in the same order.
  int next_world() { return ++worlds_; }

  /// From now on a connection that ends is no death: this process is about to leave, and knows that
  /// all others are.
  void part();

 private:
  struct Link;
  static std::unique_ptr<ControlLinks> through(const Options& options, const Door& door);
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
  std::atomic<int> worlds_{0};
  std::vector<std::unique_ptr<Link>>
      links_;  // on process 0: to each other process; else to process 0

  /// Held from when words are complete until every process has got them. A process that sees them
  /// here and then aborts must not be heard first.
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
