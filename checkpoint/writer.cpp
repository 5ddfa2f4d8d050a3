#include "checkpoint/writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "checkpoint/commit.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/step_directory.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// What the exception that is being handled says.
SaveFailure current_failure() {
  try {
    throw;
  } catch (const DiskError& error) {
    return {error.what(), error.operation, error.file, error.error_number};
  } catch (const std::exception& error) {
    return {error.what(), "", "", 0};
  }
}

}  // namespace

/// One save of one rank: a thread that writes the shard, then does what it is told.
class Writer::Save {
 public:
  Save(const WriterOptions& options, std::int64_t step, std::string save_uuid,
       const sharding::State& state);
  ~Save();

  std::chrono::nanoseconds wait_copied();
  SaveStatus status() const;
  SaveStatus wait();
  void commit(std::shared_ptr<const nlohmann::json> global);
  void finish();
  void discard();

 private:
  enum class Order { kNone, kCommit, kFinish, kDiscard };

  void run();
  void write_shard();
  void copy();
  Order next_order();
  void do_commit();
  void do_discard();
  void fail();
  void warn(const std::string& what);
  void enter(SavePhase phase);
  template <class Work>
  void attempt(const Work& work);
  bool is_busy() const;

  const WriterOptions options_;
  const std::int64_t step_;
  const std::string save_uuid_;
  const std::vector<sharding::StateTensor> tensors_;
  const std::string temporary_;
  const std::string shard_path_;
  const std::string part_path_;
  const Clock::time_point begin_ = Clock::now();
  ShardWriter shard_;
  std::unique_ptr<Commit> commit_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SaveStatus status_;
  Order order_ = Order::kNone;
  bool copied_ = false;
  bool prepared_ = false;  ///< shard durable and part written; of thread_
  bool leaving_ = false;   ///< ~Save: after a commit that succeeds there is nothing to wait for
  std::shared_ptr<const nlohmann::json> global_;
  std::thread thread_;
};

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
             options.ring, options.writes_in_flight) {
  status_.phase = SavePhase::kWriting;
  status_.times.bytes = shard_.bytes();
  thread_ = std::thread([this] { run(); });
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
  std::thread copier([this] { copy(); });
  try {
    // All ranks meet here; whoever comes first makes the directory.
    make_directory(*options_.disk, temporary_);
    const ShardInfo shard = shard_.write();
    // Not synced: rank 0 reads it now or never, and takes it away before the commit.
    write_new_file(*options_.disk, part_path_, shard_to_json(shard), false);
    prepared_ = true;
  } catch (const SaveStopped&) {
  } catch (...) {
    fail();
  }
  shard_.stop();
  copier.join();
  const std::lock_guard lock(mutex_);
  status_.times.written = Clock::now() - begin_;
  status_.times.checking = shard_.checking();
  status_.times.syncing = shard_.syncing();
  if (prepared_ && status_.phase == SavePhase::kWriting) status_.phase = SavePhase::kPrepared;
  changed_.notify_all();
}

void Writer::Save::copy() {
  try {
    shard_.copy();
  } catch (const SaveStopped&) {
  } catch (...) {
    fail();
    shard_.stop();
  }
  const std::lock_guard lock(mutex_);
  copied_ = true;
  status_.times.copied = Clock::now() - begin_;
  changed_.notify_all();
}

Writer::Save::Order Writer::Save::next_order() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return order_ != Order::kNone; });
  return std::exchange(order_, Order::kNone);
}

void Writer::Save::do_commit() {
  commit_ = std::make_unique<Commit>(
      *options_.disk, CommitPlan{options_.directory, step_, save_uuid_, options_.world, &tensors_,
                                 global_, &options_.build_index});
  try {
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

// Everyone removes what is theirs; the directory goes with whoever finds it empty. What is ours is
// decided by the part: whoever takes it away, we or rank 0's commit, has the shard from then on. So
// a rank that gives up can't take a shard out of a checkpoint that is being committed.
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
    status_.failure = current_failure();
    status_.failure->message =
        fmt::format("the checkpoint of step {} wasn't saved: {}", step_, status_.failure->message);
  }
  if (status_.phase != SavePhase::kDiscarding) status_.phase = SavePhase::kFailed;
  changed_.notify_all();
}

/// Does what the save's outcome doesn't depend on.
template <class Work>
void Writer::Save::attempt(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    warn(error.what());
  }
}

void Writer::Save::warn(const std::string& what) {
  if (what.empty()) return;
  const std::lock_guard lock(mutex_);
  status_.warning += (status_.warning.empty() ? "" : "; ") + what;
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

std::chrono::nanoseconds Writer::Save::wait_copied() {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return copied_; });
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  status_.times.stalled += waited;
  return waited;
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
  CHECK(options_.rank == 0 && status_.phase == SavePhase::kPrepared, "commit of a save that is {}",
        name_of(status_.phase));
  global_ = std::move(global);
  status_.phase = SavePhase::kCommitting;
  order_ = Order::kCommit;
  changed_.notify_all();
}

void Writer::Save::finish() {
  const std::lock_guard lock(mutex_);
  CHECK(status_.phase == SavePhase::kCommitted ||
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
      CHECK(leaving_, "discard of a checkpoint that is committed");
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

Writer::Writer(WriterOptions options) : options_(std::move(options)) {
  CHECK(options_.rank >= 0 && options_.rank < options_.world && options_.writes_in_flight > 0);
  CHECK(options_.ring.bytes() >= kBlockBytes, "a staging ring of {} bytes; a block has {}",
        options_.ring.bytes(), kBlockBytes);
  CHECK(options_.rank != 0 || options_.build_index, "rank 0 builds the index");
  std::signal(SIGXFSZ, SIG_IGN);
}

Writer::~Writer() = default;

void Writer::begin(std::int64_t step, const std::string& save_uuid, const sharding::State& state) {
  CHECK(!save_ || save_->status().phase == SavePhase::kIdle, "a save is on already");
  save_.reset();  // its thread is ending
  save_ = std::make_unique<Save>(options_, step, save_uuid, state);
}

std::chrono::nanoseconds Writer::wait_copied() {
  return save_ ? save_->wait_copied() : std::chrono::nanoseconds{};
}

SaveStatus Writer::status() const {
  return save_ ? save_->status() : SaveStatus{};
}

SaveStatus Writer::wait() {
  return save_ ? save_->wait() : SaveStatus{};
}

void Writer::commit(std::shared_ptr<const nlohmann::json> global) {
  CHECK(save_, "commit without a save");
  save_->commit(std::move(global));
}

void Writer::finish() {
  CHECK(save_, "finish without a save");
  save_->finish();
}

void Writer::discard() {
  if (save_) save_->discard();
}

std::int64_t staging_bytes(const std::vector<std::int64_t>& bytes_by_kind) {
  std::int64_t room = 0;
  // Of a kind's blocks only the last one isn't whole.
  for (const std::int64_t bytes : bytes_by_kind) room += StagingRing::room_of(bytes);
  return std::max(room, kBlockBytes);
}

std::string make_save_uuid() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string_view name_of(SavePhase phase) {
  constexpr std::array<std::string_view, 7> kNames = {
      "idle", "writing", "prepared", "committing", "committed", "failed", "being discarded"};
  return kNames[static_cast<std::size_t>(phase)];
}

double SaveTimes::mib_per_second() const {
  const double seconds = std::chrono::duration<double>(written).count();
  return seconds > 0 ? static_cast<double>(bytes) / (1 << 20) / seconds : 0;
}

}  // namespace sherd::checkpoint
