#include "checkpoint/save.h"

#include <fmt/core.h>
#include <signal.h>

#include <exception>
#include <new>
#include <utility>

#include "checkpoint/store/step_directory.h"
#include "core/error.h"
#include "core/thread.h"

namespace sherd::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kData = 3, kTraining = 5;

/// The message of the exception that is being handled.
SaveFailure current_failure() {
  try {
    throw;
  } catch (const DiskError& error) {
    return {error.what(), error.operation, error.file, error.error_number, error.exit_code()};
  } catch (const LockLost& error) {
    return {error.what(), "", "", 0, error.exit_code(), true};
  } catch (const Error& error) {
    return {error.what(), "", "", 0, error.exit_code()};
  } catch (const std::exception& error) {
    const bool out_of_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    return {error.what(), "", "", 0, out_of_memory ? kTraining : kData};
  }
}

// With SIGXFSZ blocked, a write beyond the file size limit is an error of that write. Threads
// started by this one inherit that.
void block_file_size_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  SHERD_CHECK(::pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

}  // namespace

Writer::Save::Save(const WriterOptions& options, std::int64_t step, std::string save_uuid,
                   const sharding::State& state)
    : options_(options),
      step_(step),
      save_uuid_(std::move(save_uuid)),
      tensors_(state.tensors),
      temporary_(options.directory + "/" + temporary_directory_name(step_, save_uuid_)),
      shard_path_(temporary_ + "/" + shard_name(options.rank, options.world)),
      part_path_(temporary_ + "/" + part_name(options.rank, options.world)),
      shard_(*options.disk, shard_path_, {save_uuid_, step_, options.rank, options.world}, state,
             options.ring, options.writes_in_flight, options.copy) {
  status_.phase = SavePhase::kWriting;
  status_.times.bytes = shard_.bytes();
  thread_ = start_thread("that writes a checkpoint", [this] { run(); });
}

Writer::Save::~Save() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  discard();
  thread_.join();
}

void Writer::Save::run() {
  block_file_size_signal();
  write_shard();
  for (Order order = next_order(); order != Order::kFinish; order = next_order()) {
    if (order == Order::kCommit) {
      do_commit();
    } else {
      do_discard();
      break;
    }
  }
  enter(SavePhase::kIdle);
}

void Writer::Save::write_shard() {
  std::thread copier;
  try {
    copier = start_thread("that stages a checkpoint", [this] { copy(); });
    // All ranks meet here. The first to come makes the directory, and also the parent if it was
    // removed during the run.
    if (options_.lock) options_.lock->check();
    if (make_directory(*options_.disk, options_.directory)) {
      sync_directory(*options_.disk, options_.directory + "/..");
    }
    make_directory(*options_.disk, temporary_);
    const ShardInfo shard = shard_.write();
    // Not synced: rank 0 reads it now or never, and removes it before the commit.
    write_new_file(*options_.disk, part_path_, shard_to_json(shard), false);
    prepared_ = true;
  } catch (const SaveStopped&) {
  } catch (...) {
    fail();
  }
  shard_.stop();
  if (copier.joinable()) copier.join();
  const std::lock_guard lock(mutex_);
  copied_ = true;
  status_.times.written = Clock::now() - begin_;
  status_.times.checking = shard_.checking();
  status_.times.syncing = shard_.syncing();
  if (prepared_ && status_.phase == SavePhase::kWriting) status_.phase = SavePhase::kPrepared;
  changed_.notify_all();
}

void Writer::Save::copy() {
  try {
    shard_.copy(options_.stays, [this] { set_copied(); });
  } catch (const SaveStopped&) {
  } catch (...) {
    fail();
    shard_.stop();
  }
  set_copied();
}

void Writer::Save::set_copied() {
  const std::lock_guard lock(mutex_);
  if (!copied_) status_.times.copied = Clock::now() - begin_;
  copied_ = true;
  changed_.notify_all();
}

Writer::Save::Order Writer::Save::next_order() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return order_ != Order::kNone; });
  return std::exchange(order_, Order::kNone);
}

void Writer::Save::do_commit() {
  try {
    commit_ = std::make_unique<Commit>(
        *options_.disk,
        CommitPlan{options_.directory, step_, save_uuid_, options_.world, &tensors_, global_,
                   &options_.build_index, options_.lock, options_.belongs});
    commit_->run();
  } catch (...) {
    fail();
    return;
  }
  warn(commit_->note());
  attempt([&] { commit_->hint(); });
  const std::lock_guard lock(mutex_);
  status_.times.committed = Clock::now() - begin_;
  status_.phase = SavePhase::kCommitted;
  order_ = leaving_ ? Order::kFinish : Order::kNone;  // a discard came too late
  changed_.notify_all();
}

// Every rank removes its own files; the rank that finds the directory empty removes it. The part
// decides who owns a shard: whoever removes the part (this rank, or rank 0's commit) has the shard
// from then on. So a rank that gives up can't take a shard out of a checkpoint that is being
// committed.
void Writer::Save::do_discard() {
  Disk& disk = *options_.disk;
  if (commit_) {
    attempt([&] { commit_->undo(); });
    return;
  }
  attempt([&] {
    const bool was_there = remove_file(disk, part_path_);
    if (prepared_ && !was_there) return;
    remove_file(disk, shard_path_);
    remove_directory_if_empty(disk, temporary_);
  });
}

void Writer::Save::fail() {
  const std::lock_guard lock(mutex_);
  if (!status_.failure) {
    try {
      SaveFailure failure = current_failure();
      failure.message =
          fmt::format("the checkpoint of step {} wasn't saved: {}", step_, failure.message);
      status_.failure = std::move(failure);
    } catch (const std::bad_alloc&) {  // a text this short lies in the string itself
      status_.failure = SaveFailure{"no memory", "", "", 0, kTraining};
    }
  }
  if (status_.phase != SavePhase::kDiscarding) status_.phase = SavePhase::kFailed;
  changed_.notify_all();
}

/// Does work that doesn't affect the save's outcome.
template <class Work>
void Writer::Save::attempt(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {  // std::bad_alloc, too: nobody above would catch it
    warn(error.what());
  }
}

void Writer::Save::warn(std::string_view warning) {
  if (warning.empty()) return;
  const std::lock_guard lock(mutex_);
  try {
    if (!status_.warning.empty()) status_.warning += "; ";
    status_.warning += warning;
  } catch (const std::bad_alloc&) {  // whoever has no memory for a warning will hear of worse
  }
}

void Writer::Save::enter(SavePhase phase) {
  const std::lock_guard lock(mutex_);
  status_.phase = phase;
  if (phase == SavePhase::kIdle) status_.failure.reset();
  changed_.notify_all();
}

bool Writer::Save::is_busy() const {
  return status_.phase == SavePhase::kWriting || status_.phase == SavePhase::kCommitting ||
         status_.phase == SavePhase::kDiscarding || order_ != Order::kNone;
}

bool Writer::Save::wait_copied(std::optional<std::chrono::milliseconds> most) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  const auto copied = [&] { return copied_; };
  if (most) {
    changed_.wait_for(lock, *most, copied);
  } else {
    changed_.wait(lock, copied);
  }
  status_.times.stalled += Clock::now() - begin;
  return copied_;
}

SaveStatus Writer::Save::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

SaveStatus Writer::Save::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_busy(); });
  return status_;
}

void Writer::Save::commit(std::shared_ptr<const nlohmann::json> global) {
  const std::lock_guard lock(mutex_);
  SHERD_CHECK(options_.rank == 0 && status_.phase == SavePhase::kPrepared,
              "commit of a save that is {}", name_of(status_.phase));
  global_ = std::move(global);
  status_.phase = SavePhase::kCommitting;
  order_ = Order::kCommit;
  changed_.notify_all();
}

void Writer::Save::finish() {
  const std::lock_guard lock(mutex_);
  SHERD_CHECK(status_.phase == SavePhase::kCommitted ||
                  (options_.rank != 0 && status_.phase == SavePhase::kPrepared),
              "finish of a save that is {}", name_of(status_.phase));
  status_.phase = SavePhase::kIdle;
  order_ = Order::kFinish;
  changed_.notify_all();
}

void Writer::Save::discard() {
  const std::lock_guard lock(mutex_);
  switch (status_.phase) {
    case SavePhase::kIdle:
    case SavePhase::kDiscarding:
      return;
    case SavePhase::kCommitted:
      SHERD_CHECK(leaving_, "discard of a checkpoint that is committed");
      order_ = Order::kFinish;
      break;
    case SavePhase::kCommitting:  // heard after it, if it fails
      order_ = Order::kDiscard;
      break;
    case SavePhase::kWriting:
    case SavePhase::kPrepared:
    case SavePhase::kFailed:
      status_.phase = SavePhase::kDiscarding;
      order_ = Order::kDiscard;
      shard_.stop();
      break;
  }
  changed_.notify_all();
}

}  // namespace sherd::checkpoint
