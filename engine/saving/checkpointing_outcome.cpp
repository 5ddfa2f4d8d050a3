// What becomes of a save that has begun: committed, or failed, and then what becomes of the run.
#include <chrono>
#include <thread>
#include <utility>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "engine/saving/checkpointing.h"

namespace sherd::engine {

using checkpoint::SavePhase;

// Ranks that wait for the disk go on talking: none of them is silent for so long that the others
// take it for dead.
void Checkpointing::advance(bool wait) {
  if (wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  checkpoint::SaveStatus status = writer_->status();
  if (refused_commit_) {
    status.phase = SavePhase::kFailed;
    status.failure = std::exchange(refused_commit_, std::nullopt);
  }
  const CheckpointWord own{.phase = static_cast<double>(status.phase)};
  bool all_prepared = true, any_failed = false, committed = false;
  for (const CheckpointWord& word : words_.all_gather("save", own)) {
    const auto phase = static_cast<SavePhase>(static_cast<int>(word.phase));
    any_failed |= phase == SavePhase::kFailed;
    all_prepared &= phase == SavePhase::kPrepared;
    committed |= phase == SavePhase::kCommitted;
  }
  if (any_failed) {
    failed(status);
  } else if (committed) {
    writer_->finish();
    saving_ = false;
    failed_in_a_row_ = 0;
    newest_step_ = saving_step_;
    if (rank_.rank == 0) saved(status);
  } else if (all_prepared && !committing_) {
    committing_ = true;
    if (rank_.rank == 0) commit();
  }
}

// What has to be durable before it can't be: then there is no checkpoint, and the others hear of it
// as of any save that fails.
void Checkpointing::commit() {
  try {
    if (before_commit) before_commit();
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
void Checkpointing::failed(const checkpoint::SaveStatus& status) {
  writer_->discard();
  writer_->wait();
  const CheckpointWord own{};
  words_.all_gather("save", own);  // every rank's files are gone: there is room again
  saving_ = false;
  ++failed_in_a_row_;
  const bool too_many =
      checkpoints_.max_failed_saves > 0 && failed_in_a_row_ >= checkpoints_.max_failed_saves;
  const bool ends = promised_ || too_many || (status.failure && status.failure->lock_lost);
  if (!ends) {
    if (status.failure) {
      progress_.message(
          fmt::format("rank {}: {} Training continues.", rank_.rank, status.failure->message));
    }
    return;
  }
  if (rank_.rank == 0 && before_giving_up) before_giving_up();
  if (promised_ || too_many) words_.all_gather("save", own);  // rank 0 has written what it had
  if (status.failure) give_up(*status.failure);
  words_.all_gather("save", own);  // ends with the reason of the rank that gives up
}

void Checkpointing::give_up(const checkpoint::SaveFailure& failure) const {
  if (failure.lock_lost) throw Error(failure.exit_code, failure.message);
  std::string text = failure.message;
  if (rank_.world_size() > 1) text = fmt::format("rank {}: {}", rank_.rank, text);
  if (!promised_) {
    text += fmt::format("; {} saves in a row have failed (checkpoint.max_failed_saves)",
                        failed_in_a_row_);
  }
  std::string newest = "there is no good checkpoint";
  try {
    const auto found = checkpoint::newest_checkpoint(*checkpoints_.disk, checkpoints_.directory);
    if (found.checkpoint) newest = "the newest good checkpoint is " + found.checkpoint->path();
  } catch (const DataError&) {  // no folder that could be read, so none that could be named
  }
  throw Error(failure.exit_code, fmt::format("{}; {}.", text, newest));
}

void Checkpointing::saved(const checkpoint::SaveStatus& status) {
  const checkpoint::SaveTimes& times = status.times;
  const SaveMetrics metrics{
      .saved = saving_step_,
      .bytes = times.bytes,
      .write_mib_per_s = times.mib_per_second(),
      .stalled_ms = std::chrono::duration<double, std::milli>(times.stalled).count(),
      .save_s = std::chrono::duration<double>(times.committed).count()};
  progress_.message(
      fmt::format("saved {}/{}: {:.0f} MiB/s per rank, {:.1f} ms stalled{}", checkpoints_.directory,
                  checkpoint::step_directory_name(saving_step_), metrics.write_mib_per_s,
                  metrics.stalled_ms, status.warning.empty() ? "" : "; " + status.warning));
  if (on_saved) on_saved(metrics);
  retention_->apply();
}

void Checkpointing::report_removals(const checkpoint::RetentionReport& report) const {
  for (const std::string& problem : report.problems) progress_.message(problem);
}

}  // namespace sherd::engine
