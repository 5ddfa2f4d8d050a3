#include "engine/checkpointing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/committed.h"
#include "checkpoint/hdf5_index.h"
#include "checkpoint/reader.h"
#include "checkpoint/step_directory.h"

namespace sherd::engine {
namespace {

using checkpoint::SavePhase;
using nlohmann::json;

constexpr int kNumbers = 6;  // phase, and the uuid's 128 bits in four parts; or ok and step

json to_json(const TrainingStep::Counters& counters) {
  return {{"num_updates", counters.num_updates},
          {"loss_scale", counters.scaler.scale},
          {"clean_steps", counters.scaler.clean_steps},
          {"credit", counters.scaler.credit},
          {"skips_in_a_row", counters.scaler.skips_in_a_row},
          {"total_skips", counters.scaler.total_skips}};
}

TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint) try {
  const json& counters = checkpoint.manifest().global->at("counters");
  return {
      counters.at("num_updates").get<std::int64_t>(),
      {counters.at("loss_scale").get<double>(), counters.at("clean_steps").get<std::int64_t>(),
       counters.at("credit").get<std::int64_t>(), counters.at("skips_in_a_row").get<std::int64_t>(),
       counters.at("total_skips").get<std::int64_t>()}};
} catch (const json::exception& error) {
  throw DataError("{}: its counters aren't a run's: {}", checkpoint.manifest_path(), error.what());
}

std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("validation_loss");
  if (found == manifest.global->end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// A rank's bytes of each kind, at most: slices are padded, and Muon keeps less of some kinds.
std::vector<std::int64_t> bytes_by_kind(const TrainingOptions& options,
                                        const std::vector<sharding::UnitPlan>& units, int rank) {
  std::int64_t slices = 0;
  for (const sharding::UnitPlan& unit : units) slices += unit.layout.slice_numel();
  std::map<std::string, std::int64_t> moments;
  for (const BufferSpec& buffer : optim::optimizer_buffers(options.optimizer, units, rank)) {
    if (buffer.category != Category::kOptimizer) continue;
    moments[buffer.name.substr(buffer.name.rfind('.') + 1)] =
        slices * static_cast<std::int64_t>(size_of(buffer.dtype));
    if (options.optimizer.type == optim::OptimizerType::kMuon) {
      moments["exp_avg"] = slices * static_cast<std::int64_t>(size_of(buffer.dtype));
    }
  }
  std::vector<std::int64_t> bytes = {slices * 4};
  for (const auto& [kind, of_kind] : moments) bytes.push_back(of_kind);
  return bytes;
}

}  // namespace

BufferSpec checkpoint_reading_buffer() {
  return {"checkpoint.reading", Category::kCheckpoint, DType::kU8, checkpoint::kBlockBytes, kInit};
}

std::vector<BufferSpec> checkpoint_buffers(const TrainingOptions& options, bool saves,
                                           const std::vector<sharding::UnitPlan>& units, int rank) {
  std::vector<BufferSpec> buffers = {
      sharding::exchange_buffer("checkpoint", kNumbers, units[0].layout.world_size()),
      checkpoint_reading_buffer()};
  if (saves) {
    std::int64_t bytes = checkpoint::staging_bytes(bytes_by_kind(options, units, rank));
    if (options.staging_bytes > 0) bytes = std::min(bytes, options.staging_bytes);
    buffers.push_back({"checkpoint.ring", Category::kCheckpoint, DType::kU8, bytes});
  }
  return buffers;
}

Checkpointing::Checkpointing(const TrainingOptions& options, const CheckpointOptions& checkpoints,
                             ShardedModel& model, TrainingStep& training_step, Progress& progress)
    : options_(options),
      checkpoints_(checkpoints),
      model_(model),
      training_step_(training_step),
      progress_(progress),
      rank_(model.rank()),
      exchange_(rank_, "checkpoint", kNumbers) {
  const auto buffers =
      checkpoint_buffers(options, checkpoints.saves, sharding::plans_of(model.units()), rank_.rank);
  reading_ = rank_.memory->acquire(buffers[1]);
  if (!checkpoints_.saves) return;
  ring_ = rank_.memory->acquire(buffers[2]);
  owned_ = run_state(options, model, training_step, Pieces::kOwned);
  writer_ = std::make_unique<checkpoint::Writer>(
      checkpoint::WriterOptions{.directory = checkpoints_.directory,
                                .rank = rank_.rank,
                                .world = rank_.world_size,
                                .ring = ring_,
                                .build_index = checkpoint::build_hdf5_index});
  training_step_.before_update = [this] {
    if (saving_) writer_->wait_copied();
  };
}

void Checkpointing::say(const std::string& text) const {
  if (rank_.rank == 0) progress_.message(text);
}

std::int64_t Checkpointing::begin() {
  auto& disk = checkpoint::posix_disk();
  if (rank_.rank == 0 && checkpoints_.saves) {
    for (const std::string& failure :
         checkpoint::remove_leftovers(disk, checkpoints_.directory).failures) {
      progress_.message(failure);
    }
    retention_.emplace(disk, checkpoints_.directory, checkpoints_.keep, validation_loss_of);
  }
  const std::string& resume = checkpoints_.resume;
  const bool exist = !checkpoint::committed_steps(disk, checkpoints_.directory).empty();
  std::int64_t step = 0;
  std::string problem;
  if (resume != "auto" && resume != "never") {
    if (!load(resume, false, step, problem)) throw DataError("{}", problem);
    say(fmt::format("resumed from {}: {} steps done", resume, step));
    return step;
  }
  if (resume == "never" && exist) {
    throw UsageError(
        "checkpoint.resume is never, but {} holds checkpoints. Choose another run.output_dir, move "
        "them away, or resume with --set checkpoint.resume=auto.",
        checkpoints_.directory);
  }
  if (exist) return resume_newest();
  if (!checkpoints_.init_from.empty()) {
    if (!load(checkpoints_.init_from, true, step, problem)) throw DataError("{}", problem);
    say(fmt::format("step 0, with the weights of {}", checkpoints_.init_from));
  } else {
    say(fmt::format("no checkpoint in {}: starting at step 0", checkpoints_.directory));
  }
  return 0;
}

// All ranks look, load and vote; one bad block on one rank, and all go back to the step before.
std::int64_t Checkpointing::resume_newest() {
  auto& disk = checkpoint::posix_disk();
  std::int64_t before = INT64_MAX;
  std::string problems;
  while (true) {
    checkpoint::Newest newest = checkpoint::newest_checkpoint(disk, checkpoints_.directory, before);
    for (const checkpoint::Refusal& refusal : newest.refused) {
      problems += fmt::format(" {}: {}", refusal.path, refusal.reason);
      say(fmt::format("{} is refused: {}", refusal.path, refusal.reason));
    }
    if (!newest.checkpoint) {
      throw DataError("{} holds no good checkpoint.{}", checkpoints_.directory, problems);
    }
    const std::string path = newest.checkpoint->path();
    before = newest.checkpoint->manifest().step;
    newest.checkpoint.reset();
    std::int64_t step = 0;
    std::string problem;
    if (load(path, false, step, problem)) {
      say(fmt::format("resumed from {}: {} steps done", path, step));
      return step;
    }
    problems += " " + problem;
    say(fmt::format("{} is damaged: {} Trying the one before it.", path, problem));
  }
}

// False, with the problem in words, if some rank found bad bytes. A checkpoint of another run
// throws on every rank alike.
bool Checkpointing::load(const std::string& path, bool weights_only, std::int64_t& step,
                         std::string& problem) {
  auto& disk = checkpoint::posix_disk();
  bool good = true;
  const checkpoint::Checkpoint checkpoint(disk, path);
  const auto match =
      weights_only ? checkpoint::Match::kListedKinds : checkpoint::Match::kEverything;
  const sharding::State wanted = weights_only
                                     ? weights(options_, model_, Pieces::kHeld)
                                     : run_state(options_, model_, training_step_, Pieces::kHeld);
  if (!weights_only) check_fingerprint(checkpoint.manifest(), path);
  checkpoint::check_match(checkpoint, wanted.tensors, match);
  try {
    checkpoint::load(checkpoint, wanted, match, reading_);
  } catch (const DataError& error) {
    good = false;
    problem = error.what();
    if (rank_.rank != 0) progress_.message(fmt::format("rank {}: {}", rank_.rank, problem));
  }
  const double mine[kNumbers] = {good ? 1.0 : 0.0, static_cast<double>(checkpoint.manifest().step)};
  for (const std::vector<double>& row : exchange_.all("resume", mine)) {
    if (row[1] != mine[1]) throw PeerError("ranks see different checkpoints in {}", path);
    if (row[0] != 0.0 || !good) continue;
    good = false;
    problem = "another rank found damaged bytes.";
  }
  if (!good) return false;
  if (!weights_only) {
    training_step_.restore(counters_of(checkpoint));
    step = newest_step_ = checkpoint.manifest().step;
    begun_evaluated_ = validation_loss_of(checkpoint.manifest()).has_value();
  }
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    model_.parameters().publish(static_cast<int>(unit));
  }
  return true;
}

void Checkpointing::check_fingerprint(const checkpoint::Manifest& manifest,
                                      const std::string& path) const {
  const json saved = manifest.global->value("run", json::object());
  for (const auto& [key, value] : checkpoints_.fingerprint->items()) {
    if (saved.contains(key) && saved.at(key) == value) continue;
    throw UsageError(
        "{}: {} is {} in the checkpoint and {} in the recipe. Resume with the recipe of the "
        "checkpoint, or start anew in another run.output_dir (checkpoint.init_from takes its "
        "weights).",
        path, key, saved.contains(key) ? saved.at(key).dump() : "missing", value.dump());
  }
}

void Checkpointing::after_step(std::int64_t step, const StepOutcome& outcome) {
  if (!checkpoints_.saves) return;
  if (saving_) advance(false);
  if (retention_) report_removals(retention_->take_report());
  const std::int64_t done = step + 1;
  const bool last = done == checkpoints_.max_steps;
  const std::int64_t interval = checkpoints_.interval;
  const bool due = interval > 0 && (last || done % interval == 0);
  if (!due && !outcome.save_now) return;
  while (saving_) advance(true);  // one save at a time
  begin_save(done, outcome);
  while (saving_ && (last || outcome.save_now || !checkpoints_.async)) advance(true);
}

void Checkpointing::finish() {
  while (saving_) advance(true);
  if (retention_) report_removals(retention_->finish());
}

void Checkpointing::begin_save(std::int64_t step, const StepOutcome& outcome) {
  // Rank 0 draws the uuid; its 32 hex digits travel as four numbers.
  double mine[kNumbers] = {};
  if (rank_.rank == 0) {
    const std::string uuid = checkpoint::make_save_uuid();
    for (int i = 0; i < 4; ++i) {
      mine[1 + i] = static_cast<double>(std::stoul(uuid.substr(8 * i, 8), nullptr, 16));
    }
    json global = {{"run", *checkpoints_.fingerprint},
                   {"counters", to_json(training_step_.counters())},
                   {"recipe", checkpoints_.recipe},
                   {"world_size", rank_.world_size},
                   {"vocabulary", json::array()}};
    for (const char32_t character : checkpoints_.vocabulary) {
      global["vocabulary"].push_back(static_cast<std::uint32_t>(character));
    }
    if (outcome.validation_loss && std::isfinite(*outcome.validation_loss)) {
      global["validation_loss"] = *outcome.validation_loss;
    }
    global_ = std::make_shared<const json>(std::move(global));
  }
  const std::vector<double> first = exchange_.all("save", mine)[0];
  std::string uuid;
  for (int i = 0; i < 4; ++i) {
    uuid += fmt::format("{:08x}", static_cast<std::uint32_t>(first[1 + i]));
  }
  writer_->begin(step, uuid, owned_);
  saving_ = true;
  committing_ = false;
  saving_step_ = step;
}

// Ranks that wait for the disk go on talking: none of them is silent for so long that the others
// take it for dead.
void Checkpointing::advance(bool wait) {
  if (wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const checkpoint::SaveStatus status = writer_->status();
  const double mine[kNumbers] = {static_cast<double>(status.phase)};
  bool all_prepared = true, any_failed = false, committed = false;
  const auto rows = exchange_.all("save", mine);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto phase = static_cast<SavePhase>(static_cast<int>(rows[r][0]));
    any_failed |= phase == SavePhase::kFailed;
    all_prepared &= phase == SavePhase::kPrepared;
    committed |= phase == SavePhase::kCommitted;
  }
  if (status.failure) {
    progress_.message(fmt::format("rank {}: the checkpoint of step {} failed: {} Training goes on.",
                                  rank_.rank, saving_step_, status.failure->message));
  }
  if (any_failed) {
    writer_->discard();
    writer_->wait();
    exchange_.all("save", mine);  // every rank's files are gone: there is room again
    saving_ = false;
  } else if (committed) {
    writer_->finish();
    saving_ = false;
    newest_step_ = saving_step_;
    if (rank_.rank == 0) saved(status);
  } else if (all_prepared && !committing_) {
    committing_ = true;
    if (rank_.rank == 0) {
      if (before_commit) before_commit();
      writer_->commit(global_);
    }
  }
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
