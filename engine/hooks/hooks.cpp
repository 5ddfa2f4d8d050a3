#include "engine/hooks/hooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/thread.h"

namespace sherd::engine {
namespace {

constexpr std::chrono::milliseconds kBetweenPolls{50}, kUntilItIsSaid{1000}, kLongestPause{60000};

std::string checkpoint_path(const HookFacts& facts, std::int64_t step) {
  return facts.output_dir + "/checkpoints/" + checkpoint::step_directory_name(step);
}

// The newest checkpoint in the run's folder up to its step; empty: there is none. Later ones weren't
// accepted.
std::string newest_of(const HookFacts& facts, checkpoint::Disk& disk) {
  for (const std::int64_t step :
       checkpoint::committed_steps(disk, facts.output_dir + "/checkpoints")) {
    if (step <= facts.step) return checkpoint_path(facts, step);
  }
  return "";
}

std::optional<double> val_loss_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("validation_loss");
  if (found == manifest.global->end() || !found->is_number()) return {};
  return found->get<double>();
}

bool is_good_end(int exit_code) {
  return exit_code == 0 || exit_code == 75 || exit_code == 130;
}

}  // namespace

Hooks::Hooks(HookOptions options)
    : options_(std::move(options)),
      log_(*options_.disk, options_.facts.output_dir, options_.lock),
      delivered_(*options_.disk, options_.facts.output_dir, options_.lock),
      facts_(options_.facts),
      thread_(start_thread("that runs hooks", [this] { run(); })) {}

Hooks::~Hooks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

const std::string& Hooks::command_of(HookEvent event) const {
  const HookKeys& keys = options_.keys;
  const std::string* const commands[] = {&keys.on_start, &keys.on_step, &keys.on_evaluation,
                                         &keys.on_save,  &keys.on_end,  &keys.on_failure};
  return *commands[static_cast<std::size_t>(event)];
}

void Hooks::begin(std::int64_t step) {
  std::vector<std::int64_t> missing;
  if (!options_.keys.on_save.empty()) {
    try {
      delivered_.load();
      missing = delivered_.missing();
    } catch (const DataError& error) {
      options_.say(fmt::format("warning: hooks.on_save: {}", error.what()));
    }
  }
  const std::lock_guard lock(mutex_);
  facts_.step = step;
  facts_.checkpoint = newest_of(facts_, *options_.disk);
  push(HookEvent::kStart, facts_);
  for (const std::int64_t saved : missing) {
    HookFacts facts = facts_;
    facts.step = saved;
    push(HookEvent::kSave, facts);
  }
}

void Hooks::rewound(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  facts_.step = step;
  facts_.checkpoint = newest_of(facts_, *options_.disk);
}

void Hooks::step(std::int64_t step, double loss) {
  const std::lock_guard lock(mutex_);
  facts_.step = step;
  facts_.loss = loss;
  if (step % options_.keys.step_interval != 0 || options_.keys.on_step.empty()) return;
  num_replaced_ += static_cast<std::int64_t>(
      std::erase_if(jobs_, [](const Job& job) { return job.event == HookEvent::kStep; }));
  push(HookEvent::kStep, facts_);
}

void Hooks::evaluation(std::int64_t step, double val_loss) {
  const std::lock_guard lock(mutex_);
  facts_.step = step;
  facts_.val_loss = val_loss;
  push(HookEvent::kEvaluation, facts_);
}

void Hooks::saved(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  facts_.checkpoint = checkpoint_path(facts_, step);
  HookFacts facts = facts_;
  facts.step = step;
  push(HookEvent::kSave, facts);
}

void Hooks::end(int exit_code, const std::string& error) {
  std::unique_lock lock(mutex_);
  if (!facts_.exit_code) {
    facts_.exit_code = exit_code;
    facts_.error = error;
    push(is_good_end(exit_code) ? HookEvent::kEnd : HookEvent::kFailure, facts_);
  }
  wait(lock, [this] { return jobs_.empty() && !running_; });
  if (num_replaced_ > 0) {
    options_.say(fmt::format(
        "hooks.on_step was left out {} times: commands took longer than the steps between them",
        num_replaced_));
  }
  if (num_dropped_ > 0) {
    options_.say(fmt::format("warning: hooks: {} command{} not run, since the run has to end",
                             num_dropped_, num_dropped_ == 1 ? " was" : "s were"));
  }
}

void Hooks::wait_for_saves() {
  std::unique_lock lock(mutex_);
  wait(lock, [this] {
    return running_ != HookEvent::kSave && std::ranges::none_of(jobs_, [](const Job& job) {
             return job.event == HookEvent::kSave;
           });
  });
  if (options_.waited) options_.waited();
}

bool Hooks::may_remove(const checkpoint::Checkpoint& found) {
  if (options_.keys.on_save.empty()) return true;
  const std::string& uuid = found.manifest().save_uuid;
  if (delivered_.has(uuid)) return true;
  const std::lock_guard lock(mutex_);
  return given_up_.contains(uuid);
}

void Hooks::push(HookEvent event, const HookFacts& facts) {
  if (command_of(event).empty()) return;
  jobs_.push_back({event, facts});
  changed_.notify_all();
}

// While training continues, only the timeout ends a command.
bool Hooks::is_over() {
  // Under the lock: asked after a wait has ended, the deadline would be cancelled for good.
  const std::lock_guard lock(mutex_);
  if (stopping_) return true;
  if (!finishing_ || !options_.deadline) return false;
  const auto deadline = options_.deadline();
  return deadline && HookOptions::Clock::now() >= *deadline;
}

template <class Done>
void Hooks::wait(std::unique_lock<std::mutex>& lock, const Done& done) {
  finishing_ = true;
  const auto begin = HookOptions::Clock::now();
  bool said = false;
  while (!changed_.wait_for(lock, kBetweenPolls, done)) {
    const std::size_t waiting = jobs_.size() + (running_ ? 1 : 0);
    lock.unlock();
    if (!said && HookOptions::Clock::now() - begin >= kUntilItIsSaid) {
      options_.say(
          fmt::format("waiting for {} command{} of hooks", waiting, waiting == 1 ? "" : "s"));
      said = true;
    }
    const bool over = is_over();
    lock.lock();
    if (!over) continue;
    num_dropped_ += std::ssize(jobs_);
    jobs_.clear();
  }
  finishing_ = false;  // after a rewind, training continues
}

void Hooks::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = job.event;
    lock.unlock();
    const bool over = is_over();
    if (!over) perform(std::move(job));
    lock.lock();
    num_dropped_ += over ? 1 : 0;
    running_.reset();
    changed_.notify_all();
  }
}

CommandEnd Hooks::run_once(const Job& job) {
  const std::string& command = command_of(job.event);
  const std::string attempt =
      job.facts.attempt > 1 ? fmt::format(", attempt {}", job.facts.attempt) : "";
  log_.note(
      fmt::format("on_{} at step {}{}: {}", name_of(job.event), job.facts.step, attempt, command));
  const CommandEnd end = run_command({.text = command,
                                      .environment = environment_of(job.event, job.facts),
                                      .input = json_of(job.event, job.facts),
                                      .timeout = timeout(),
                                      .on_output = [this](auto text) { log_.write(text); },
                                      .gives_up = [this] { return is_over(); }});
  if (!end.succeeded()) log_.note(fmt::format("it {}", end.text(timeout())));
  return end;
}

void Hooks::warn(const Job& job, const CommandEnd& end, const std::string& more) {
  options_.say(fmt::format("warning: hooks.on_{} at step {} {}{} ({})", name_of(job.event),
                           job.facts.step, end.text(timeout()), more, log_.path()));
}

void Hooks::perform(Job job) {
  const HookEvent event = job.event;
  try {
    if (event == HookEvent::kSave) return deliver(std::move(job));
    const CommandEnd end = run_once(job);
    if (!end.succeeded()) warn(job, end);
  } catch (const std::exception& error) {
    options_.say(fmt::format("warning: hooks.on_{}: {}", name_of(event), error.what()));
  }
}

void Hooks::deliver(Job job) {
  job.facts.checkpoint = checkpoint_path(job.facts, job.facts.step);
  const checkpoint::Checkpoint saved(*options_.disk, job.facts.checkpoint);
  const std::string& uuid = saved.manifest().save_uuid;
  if (delivered_.has(uuid)) return;
  job.facts.val_loss = val_loss_of(saved.manifest());
  const std::int64_t most = options_.keys.retries + 1;
  CommandEnd end;
  for (int attempt = 1; attempt <= most; ++attempt) {
    job.facts.attempt = attempt;
    end = run_once(job);
    if (end.succeeded()) return delivered_.add(job.facts.step, uuid);
    if (attempt < most && !pause(attempt)) break;
  }
  warn(job, end,
       job.facts.attempt > 1 ? fmt::format("; it was tried {} times", job.facts.attempt) : "");
  // One that the run's end has cut off is delivered by the next start.
  if (job.facts.attempt < most || end.kind == CommandEnd::Kind::kGivenUp) return;
  const std::lock_guard lock(mutex_);
  given_up_.insert(uuid);
}

// Before a retry. False: there is no time for one.
bool Hooks::pause(int attempt) {
  auto left = options_.first_pause;
  for (int i = 1; i < attempt && left < kLongestPause; ++i) left *= 2;
  const auto until = HookOptions::Clock::now() + std::min(left, kLongestPause);
  while (!is_over()) {
    std::unique_lock lock(mutex_);
    const auto now = HookOptions::Clock::now();
    if (now >= until) return true;
    changed_.wait_until(lock, std::min(until, now + kBetweenPolls));
  }
  return false;
}

}  // namespace sherd::engine
