#include "engine/saving/saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "checkpoint/reader.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/hdf5_index.h"
#include "checkpoint/store/step_directory.h"
#include "core/offload_home.h"
#include "core/thread.h"
#include "engine/train/units/frozen_weights.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {
namespace {

using checkpoint::SavePhase;
using nlohmann::json;

// The part of a manifest that says what the run is and how far it has come.
json manifest_of(const Checkpointing& shared, const std::string& base_digest,
                 const StepOutcome& outcome) {
  const CheckpointOptions& checkpoints = shared.checkpoints();
  json global = {
      {"run", *checkpoints.fingerprint}, {"counters", to_json(shared.training_step().counters())},
      {"recipe", checkpoints.recipe},    {"world_size", shared.rank().world_size()},
      {"isa", isa_of(shared.rank())},    {"best_evaluation", to_json(outcome.best)},
      {"folder", checkpoints.folder},    {"vocabulary", json::array()}};
  if (shared.options().model.adapter.active()) {
    global["base"] = {{"digest", base_digest}, {"path", checkpoints.init_from}};
  }
  for (const char32_t character : checkpoints.vocabulary) {
    global["vocabulary"].push_back(static_cast<std::uint32_t>(character));
  }
  for (const data::Skip& skip : outcome.skips) {
    json& saved = global["data_skips"].emplace_back(json{skip.at_step, skip.num_steps});
    if (skip.is_rest) saved.push_back(1);
  }
  if (outcome.validation_loss && std::isfinite(*outcome.validation_loss)) {
    global["validation_loss"] = *outcome.validation_loss;
  }
  if (global.contains("validation_loss") || outcome.best.loss) {
    global["validated_on"] = to_json(shared.validated_on());
  }
  return global;
}

}  // namespace

Saver::Saver(Checkpointing& shared, SaveEvents events)
    : shared_(shared),
      checkpoints_(shared.checkpoints()),
      rank_(shared.rank()),
      events_(std::move(events)) {
  if (!checkpoints_.saves) return;
  ring_ = rank_.acquire(checkpoint_buffers(shared.options(), true,
                                           {rank_.mesh, sharding::plans_of(shared.model().units())})
                            .back());
  owned_ = run_state(shared.options(), shared.model(), shared.training_step(), Pieces::kOwned);
  checkpoint::WriterOptions options{
      .directory = checkpoints_.directory,
      .rank = rank_.rank,
      .world = rank_.world_size(),
      .ring = ring_,
      .build_index = checkpoint::build_hdf5_index,
      .disk = checkpoints_.disk,
      .lock = checkpoints_.lock,
      .copy = shared.copy(),
      .belongs = [this](const checkpoint::Checkpoint& checkpoint) { require_own(checkpoint); }};
  if (OffloadHome* const disk = rank_.offload_home.get(); disk && disk->keeps_snapshots()) {
    options.copy = [disk](const void* from, void* to, std::int64_t bytes) {
      if (disk->has(from)) return disk->copy_of_snapshot(from, to, bytes);
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
    };
    options.stays = [disk](const void* address) { return disk->has(address); };
  }
  writer_ = std::make_unique<checkpoint::Writer>(std::move(options));
  shared.training_step().before_update = [this] { wait_copied(); };
}

void Saver::clear_leftovers() {
  if (rank_.rank != 0 || !checkpoints_.saves) return;
  for (const std::string& failure :
       checkpoint::remove_leftovers(shared_.disk(), checkpoints_.directory).failures) {
    shared_.say(failure);
  }
  const auto belongs = [this](const checkpoint::Checkpoint& checkpoint) {
    require_own(checkpoint);
  };
  const auto loss_of = [on = shared_.validated_on()](const checkpoint::Manifest& manifest) {
    return checkpoint::GoodCheckpoint{.value = validation_loss_of(manifest),
                                      .measured_as = measured_as(manifest, on)};
  };
  retention_.emplace(shared_.disk(), checkpoints_.directory, checkpoints_.keep, loss_of,
                     checkpoint::VerifyDepth::kDeep,
                     checkpoint::RetentionGuards{belongs, checkpoints_.lock, events_.may_remove});
}

// DataError if it is another model's. The number of replicas may be another one.
void Saver::require_own(const checkpoint::Checkpoint& checkpoint) const {
  const int replicas = replicas_saved(shared_.options(), checkpoint.manifest().tensors);
  checkpoint::check_match(checkpoint, state_tensors(shared_.options(), replicas),
                          checkpoint::Match::kEverything);
}

void Saver::start(const Start& start) {
  base_digest_ = start.base_digest;
  if (start.from_checkpoint) newest_step_ = start.steps_done;
}

void Saver::after_step(std::int64_t step, const StepOutcome& outcome) {
  if (!checkpoints_.saves) return;
  if (saving_) advance(false);
  if (retention_) report_removals(retention_->take_report());
  const std::int64_t done = step + 1;
  const bool last = done == checkpoints_.max_steps;
  const std::int64_t interval = checkpoints_.interval;
  const bool due = interval > 0 && (last || done % interval == 0);
  if (!due && outcome.wish == SaveWish::kIfDue) return;
  const bool must = last || outcome.wish == SaveWish::kMust;
  if (saving_step_ == done && (saving_ || newest_step_ == done)) {  // asked once more
    promised_ = promised_ || must;
    while (saving_ && promised_) advance(true);
    return;
  }
  while (saving_) advance(true);  // one save at a time
  promised_ = must;
  begin_save(done, outcome);
  while (saving_ && (promised_ || !checkpoints_.async)) advance(true);
}

void Saver::finish() {
  while (saving_) advance(true);
  if (!checkpoints_.saves) return;
  std::atomic<bool> is_over{!retention_};
  std::exception_ptr error;
  checkpoint::RetentionReport report;
  std::thread waiting;
  if (retention_) {
    waiting = start_thread("that waits for removals of checkpoints", [&] {
      try {
        if (events_.before_last_removal) {
          events_.before_last_removal();
          retention_->apply();
        }
        report = retention_->finish();
      } catch (...) {
        error = std::current_exception();
      }
      is_over = true;
    });
  }
  try {
    shared_.wait_together("last removals", [&](std::chrono::milliseconds most) {
      if (!is_over) std::this_thread::sleep_for(most);
      return is_over.load();
    });
  } catch (...) {
    if (waiting.joinable()) waiting.join();
    throw;
  }
  if (!retention_) return;
  waiting.join();
  if (error) std::rethrow_exception(error);
  report_removals(report);
}

// With less staging than a rank saves, this waits for its disk; others have less to write, or a
// faster disk.
void Saver::wait_copied() {
  if (!saving_ || copied_) return;
  if (shared_.options().staging_bytes > 0) {
    shared_.wait_together("copies for a checkpoint", [this](std::chrono::milliseconds most) {
      return writer_->wait_copied(most);
    });
  } else {
    writer_->wait_copied();
  }
  copied_ = true;
}

void Saver::begin_save(std::int64_t step, const StepOutcome& outcome) {
  shared_.training_step().settle();
  CheckpointWord own;
  if (rank_.rank == 0) {
    const std::string uuid = checkpoint::make_save_uuid();
    for (std::size_t i = 0; i < 4; ++i) {
      own.save_uuid[i] = static_cast<double>(std::stoul(uuid.substr(8 * i, 8), nullptr, 16));
    }
    global_ = std::make_shared<const json>(manifest_of(shared_, base_digest_, outcome));
  }
  const CheckpointWord first = shared_.exchange("save", own)[0];
  std::string uuid;
  for (const double part : first.save_uuid) {
    uuid += fmt::format("{:08x}", static_cast<std::uint32_t>(part));
  }
  // Telling one another has waited for the compute stream: what is saved has been computed.
  if (rank_.offload_home) rank_.offload_home->begin_snapshot();
  writer_->begin(step, uuid, owned_);
  saving_ = true;
  copied_ = false;
  committing_ = false;
  saving_step_ = step;
}

// Ranks that wait for the disk go on talking: none of them is silent for so long that the others
// take it for dead.
void Saver::advance(bool wait) {
  if (wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  checkpoint::SaveStatus status = writer_->status();
  if (refused_commit_) {
    status.phase = SavePhase::kFailed;
    status.failure = std::exchange(refused_commit_, std::nullopt);
  }
  const CheckpointWord own{.phase = static_cast<double>(status.phase)};
  bool all_prepared = true, any_failed = false, committed = false;
  for (const CheckpointWord& word : shared_.exchange("save", own)) {
    const auto phase = static_cast<SavePhase>(static_cast<int>(word.phase));
    any_failed |= phase == SavePhase::kFailed;
    all_prepared &= phase == SavePhase::kPrepared;
    committed |= phase == SavePhase::kCommitted;
  }
  if (any_failed) {
    failed(status);
  } else if (committed) {
    writer_->finish();
    end_save();
    failed_in_a_row_ = 0;
    newest_step_ = saving_step_;
    if (rank_.rank == 0) saved(status);
  } else if (all_prepared && !committing_) {
    committing_ = true;
    if (rank_.rank == 0) commit();
  }
}

void Saver::end_save() {
  if (rank_.offload_home) rank_.offload_home->end_snapshot();
  saving_ = false;
}

// What has to be durable before it can't be: then there is no checkpoint, and the others hear of it
// as of any save that fails.
void Saver::commit() {
  try {
    if (events_.before_commit) events_.before_commit();
  } catch (const checkpoint::LockLost&) {
    throw;
  } catch (const DataError& error) {
    refused_commit_ =
        checkpoint::SaveFailure{.message = fmt::format("the checkpoint of step {} wasn't saved: {}",
                                                       saving_step_, error.what()),
                                .operation = "",
                                .file = ""};
    return;
  }
  writer_->commit(global_);
}

// All ranks draw the same conclusion; only those with something to say say it, and the others hear
// of an end from them.
void Saver::failed(const checkpoint::SaveStatus& status) {
  writer_->discard();
  writer_->wait();
  const CheckpointWord own{};
  shared_.exchange("save", own);  // every rank's files are gone: there is room again
  end_save();
  ++failed_in_a_row_;
  const bool too_many =
      checkpoints_.max_failed_saves > 0 && failed_in_a_row_ >= checkpoints_.max_failed_saves;
  const bool ends = promised_ || too_many || (status.failure && status.failure->lock_lost);
  if (!ends) {
    if (status.failure) {
      shared_.say_here(
          fmt::format("rank {}: {}. Training continues.", rank_.rank, status.failure->message));
    }
    return;
  }
  if (rank_.rank == 0 && events_.before_giving_up) events_.before_giving_up();
  if (promised_ || too_many) shared_.exchange("save", own);  // rank 0 has written what it had
  if (status.failure) give_up(*status.failure);
  shared_.exchange("save", own);  // ends with the reason of the rank that gives up
}

void Saver::give_up(const checkpoint::SaveFailure& failure) const {
  if (failure.lock_lost) throw Error(failure.exit_code, failure.message);
  std::string text = failure.message;
  if (rank_.world_size() > 1) text = fmt::format("rank {}: {}", rank_.rank, text);
  if (!promised_) {
    text += fmt::format("; {} saves in a row have failed (checkpoint.max_failed_saves)",
                        failed_in_a_row_);
  }
  std::string newest = "there is no good checkpoint";
  try {
    // Newer ones than this run has loaded or saved were refused.
    const std::int64_t before = newest_step_ >= 0 ? newest_step_ + 1 : INT64_MAX;
    const auto found =
        checkpoint::newest_checkpoint(shared_.disk(), checkpoints_.directory, before);
    if (found.checkpoint) newest = "the newest good checkpoint is " + found.checkpoint->path();
  } catch (const DataError&) {  // no folder that could be read, so none that could be named
  }
  throw Error(failure.exit_code, fmt::format("{}; {}.", text, newest));
}

void Saver::saved(const checkpoint::SaveStatus& status) {
  const checkpoint::SaveTimes& times = status.times;
  const SaveMetrics metrics{
      .saved = saving_step_,
      .bytes = times.bytes,
      .write_mib_per_s = times.mib_per_second(),
      .stalled_ms = std::chrono::duration<double, std::milli>(times.stalled).count(),
      .save_s = std::chrono::duration<double>(times.committed).count()};
  const std::string rate = rank_.mesh.num_owners() > 0
                               ? "by the parameter servers"
                               : fmt::format("{:.0f} MiB/s per rank", metrics.write_mib_per_s);
  shared_.say_here(fmt::format("saved {}/{}: {}, {:.1f} ms stalled{}", checkpoints_.directory,
                               checkpoint::step_directory_name(saving_step_), rate,
                               metrics.stalled_ms,
                               status.warning.empty() ? "" : "; " + status.warning));
  if (events_.on_saved) events_.on_saved(metrics);
  retention_->apply();
}

void Saver::report_removals(const checkpoint::RetentionReport& report) const {
  for (const std::string& problem : report.problems) shared_.say_here(problem);
}

}  // namespace sherd::engine
