#include "engine/saving/checkpointing.h"
#include "engine/train/units/frozen_weights.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/reader.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/hdf5_index.h"
#include "checkpoint/store/step_directory.h"
#include "engine/saving/base_model.h"
#include "engine/saving/initial_adapter.h"
#include "engine/saving/initial_weights.h"
#include "kernels/isa.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

// What computes the matmuls, where that is a CPU.
std::string isa_of(const sharding::Rank& rank) {
  const bool cpu = rank.compute().device() == DeviceKind::kCpu;
  return cpu ? std::string(kernels::name_of(kernels::isa())) : std::string();
}

// A rank's bytes of each kind, at most: slices are padded, and some parameters may lack some kinds.
std::vector<std::int64_t> bytes_by_kind(const TrainingOptions& options,
                                        const sharding::ShardingPlan& plan) {
  const optim::OptimizerDescriptor& optimizer = optim::descriptor_of(options.optimizer.type);
  std::int64_t slices = 0;
  std::set<std::string> kinds;
  for (const sharding::UnitPlan& unit : plan.units) {
    slices += unit.layout.slice_numel();
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      for (std::string& kind : optimizer.moment_kinds(options.optimizer, unit.spec, parameter)) {
        kinds.insert(std::move(kind));
      }
    }
  }
  std::vector<std::int64_t> bytes = {slices * 4};
  bytes.resize(1 + kinds.size(),
               slices * static_cast<std::int64_t>(size_of(options.optimizer.moment_type.dtype)));
  return bytes;
}

}  // namespace

BufferSpec checkpoint_reading_buffer() {
  return {"checkpoint.reading", Category::kCheckpoint, DType::kU8, checkpoint::kBlockBytes, kInit,
          Home::kHost};
}

std::vector<BufferSpec> checkpoint_buffers(const TrainingOptions& options, bool saves,
                                           const sharding::ShardingPlan& plan) {
  std::vector<BufferSpec> buffers = {
      sharding::Agreement<CheckpointWord>::buffer("checkpoint", plan.mesh.world_size()),
      checkpoint_reading_buffer()};
  if (saves) {
    std::int64_t bytes = checkpoint::staging_bytes(bytes_by_kind(options, plan));
    if (options.staging_bytes > 0) bytes = std::min(bytes, options.staging_bytes);
    buffers.push_back(
        {"checkpoint.ring", Category::kCheckpoint, DType::kU8, bytes, kAlways, Home::kHost});
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
      words_(rank_, "checkpoint") {
  const auto buffers = checkpoint_buffers(options, checkpoints.saves,
                                          {rank_.mesh, sharding::plans_of(model.units())});
  reading_ = rank_.acquire(buffers[1]);
  if (rank_.separate_memory()) {
    copies_ = rank_.make_stream(StreamPurpose::kCopy, "checkpoint");
    copy_ = [this](const void* from, void* to, std::int64_t bytes) {
      copies_->copy(from, to, bytes);
      copies_->synchronize();
    };
  }
  if (!checkpoints_.saves) return;
  ring_ = rank_.acquire(buffers[2]);
  owned_ = run_state(options, model, training_step, Pieces::kOwned);
  writer_ = std::make_unique<checkpoint::Writer>(
      checkpoint::WriterOptions{.directory = checkpoints_.directory,
                                .rank = rank_.rank,
                                .world = rank_.world_size(),
                                .ring = ring_,
                                .build_index = checkpoint::build_hdf5_index,
                                .disk = checkpoints_.disk,
                                .lock = checkpoints_.lock,
                                .copy = copy_});
  training_step_.before_update = [this] {
    if (saving_) writer_->wait_copied();
  };
}

void Checkpointing::say(const std::string& text) const {
  if (rank_.rank == 0) progress_.message(text);
}

std::int64_t Checkpointing::begin() {
  auto& disk = *checkpoints_.disk;
  if (rank_.rank == 0 && checkpoints_.saves) {
    for (const std::string& failure :
         checkpoint::remove_leftovers(disk, checkpoints_.directory).failures) {
      progress_.message(failure);
    }
    const auto belongs = [this](const checkpoint::Checkpoint& checkpoint) {
      checkpoint::check_match(checkpoint, owned_.tensors, checkpoint::Match::kEverything);
    };
    retention_.emplace(disk, checkpoints_.directory, checkpoints_.keep, validation_loss_of,
                       checkpoint::VerifyDepth::kDeep,
                       checkpoint::RetentionGuards{belongs, checkpoints_.lock});
  }
  load_base();
  const std::string& resume = checkpoints_.resume;
  const bool exist = !checkpoint::committed_steps(disk, checkpoints_.directory).empty();
  std::int64_t step = 0;
  std::string problem;
  if (resume != "auto" && resume != "never") {
    if (const int refusing = load(resume, false, step, problem); refusing >= 0) {
      refuse_together(refusing, problem);
    }
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
    begin_with(checkpoints_.init_from);
    say(fmt::format("step 0, with the weights of {}{}", checkpoints_.init_from,
                    checkpoints_.adapter.empty()
                        ? ""
                        : fmt::format(" and the adapter of {}", checkpoints_.adapter)));
  } else {
    say(fmt::format("no checkpoint in {}: starting at step 0", checkpoints_.directory));
  }
  return 0;
}

// Frozen parameters come from the base, whether or not there is something to resume; so do those of
// modules that are trained, until a checkpoint is loaded over them. Whatever comes last is published.
void Checkpointing::load_base() {
  if (!model_.frozen().any()) return;
  CHECK(!checkpoints_.init_from.empty(), "an adapter without a model that it is for");
  const BaseModel base(options_, checkpoints_.init_from, *checkpoints_.disk);
  read_together([&] { base_digest_ = load_base_model(base, options_, model_, reading_, copy_); });
}

// Every rank reads, or none goes on.
void Checkpointing::read_together(const std::function<void()>& read) {
  std::string problem;
  try {
    read();
  } catch (const DataError& error) {
    problem = error.what();
  }
  if (const int refusing = first_to_refuse(checkpoints_.init_from, problem, 0); refusing >= 0) {
    refuse_together(refusing, problem);
  }
}

// The first rank with a problem; -1: none has one.
int Checkpointing::first_to_refuse(const std::string& path, const std::string& problem,
                                   std::int64_t step) try {
  const CheckpointWord own{.loaded = problem.empty() ? 1.0 : 0.0,
                           .step = static_cast<double>(step)};
  const std::vector<CheckpointWord> words = words_.all_gather("read", own);
  for (const CheckpointWord& word : words) {
    if (word.step != own.step) throw PeerError("ranks see different checkpoints in {}", path);
  }
  const auto found = std::ranges::find(words, 0.0, &CheckpointWord::loaded);
  return found == words.end() ? -1 : static_cast<int>(found - words.begin());
} catch (const PeerError&) {  // what this rank has found out isn't lost with another one
  if (!problem.empty()) throw DataError("{}", problem);
  throw;
}

// Rank `refusing` ends with its own problem, when all know that it will; the others with what that rank said. If a rank
// dies meanwhile, that is what they say.
void Checkpointing::refuse_together(int refusing, const std::string& problem) {
  const bool is_own = rank_.rank == refusing;
  try {
    do {
      words_.all_gather("refuse", {});
    } while (!is_own);
  } catch (const PeerError& refusal) {
    if (!is_own) throw RefusedElsewhere(refusal.what());
  }
  throw DataError("{}", problem);
}

void Checkpointing::begin_with(const std::string& init_from) {
  auto& disk = *checkpoints_.disk;
  if (model_.frozen().any()) {  // load_base has read the rest
    if (!checkpoints_.adapter.empty()) {
      read_together([&] {
        load_first_adapter(disk, checkpoints_.adapter, init_from, options_,
                           weights(options_, model_, Pieces::kHeld), copy_);
      });
    }
    return publish();
  }
  if (!checkpoint::is_model_folder(disk, init_from)) {
    std::int64_t step = 0;
    std::string problem;
    if (const int refusing = load(init_from, true, step, problem); refusing >= 0) {
      refuse_together(refusing, problem);
    }
    return;
  }
  read_together([&] {
    const huggingface::FolderWeights folder = open_folder_weights(disk, init_from, options_);
    folder.load(weights(options_, model_, Pieces::kHeld), reading_, copy_);
  });
  publish();
}

void Checkpointing::publish() {
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    model_.publish(static_cast<int>(unit));
  }
}

// All ranks look, load and vote; one bad block on one rank, and all go back to the step before.
std::int64_t Checkpointing::resume_newest() {
  auto& disk = *checkpoints_.disk;
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
    if (load(path, false, step, problem) < 0) {
      say(fmt::format("resumed from {}: {} steps done", path, step));
      if (!changed_bits_.empty()) say(changed_bits_);
      return step;
    }
    if (problem.empty()) {
      problem = "another rank found damaged bytes.";
    } else if (rank_.rank != 0) {
      progress_.message(fmt::format("rank {}: {}", rank_.rank, problem));
    }
    problems += " " + problem;
    say(fmt::format("{} is damaged: {} Trying the one before it.", path, problem));
  }
}

// The first rank that found bad bytes, -1 if none did; each of them has its problem in words. A checkpoint of another run
// throws on every rank alike.
int Checkpointing::load(const std::string& path, bool weights_only, std::int64_t& step,
                        std::string& problem) {
  problem.clear();
  const checkpoint::Checkpoint checkpoint(*checkpoints_.disk, path);
  const auto match =
      weights_only ? checkpoint::Match::kListedKinds : checkpoint::Match::kEverything;
  const sharding::State wanted = weights_only
                                     ? weights(options_, model_, Pieces::kHeld)
                                     : run_state(options_, model_, training_step_, Pieces::kHeld);
  const ResumeCheck check = compare(checkpoint, weights_only);
  if (weights_only) require_whole_model(checkpoint);
  if (model_.frozen().any()) require_same_base(checkpoint, base_digest_, checkpoints_.init_from);
  if (!weights_only) note_changed_bits(checkpoint.manifest());
  checkpoint::check_match(checkpoint, wanted.tensors, match);
  TrainingStep::Counters counters;
  BestEvaluation best;
  if (!weights_only) {
    counters = counters_of(checkpoint);
    best = best_evaluation_of(checkpoint);
  }
  try {
    checkpoint::load(checkpoint, wanted, match, reading_, copy_);
  } catch (const DataError& error) {
    problem = error.what();
  }
  const int refusing = first_to_refuse(path, problem, checkpoint.manifest().step);
  if (refusing >= 0) return refusing;
  if (!weights_only) {
    counters.scaler = resumed_scaler(counters.scaler, options_.loss_scaling, check);
    training_step_.restore(counters);
    step = newest_step_ = checkpoint.manifest().step;
    begun_evaluated_ = validation_loss_of(checkpoint.manifest()).has_value();
    begun_best_ = best;
  }
  publish();
  return -1;
}

// Refuses another run, and prints what else is different.
ResumeCheck Checkpointing::compare(const checkpoint::Checkpoint& checkpoint,
                                   bool weights_only) const {
  const auto& global = *checkpoint.manifest().global;
  const auto& settings = *checkpoints_.fingerprint;
  ResumeCheck check =
      weights_only ? compare_models(global, settings) : compare_runs(global, settings);
  require_same_run(check, checkpoint.path());
  if (const std::string changes = changes_text(check); !changes.empty()) say(changes);
  return check;
}

// Instruction sets give the same bits, all but one (kernels/isa.h).
void Checkpointing::note_changed_bits(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("isa");
  const std::string saved = found != manifest.global->end() && found->is_string()
                                ? found->get<std::string>()
                                : std::string();
  const std::string own = isa_of(rank_);
  const std::string_view amx = kernels::name_of(kernels::Isa::kAmx);
  changed_bits_.clear();
  if (options_.precision.parameters != DType::kBF16 || (saved == amx) == (own == amx)) return;
  changed_bits_ = fmt::format(
      "bf16 matmuls were computed with {} until here and go on with {}: the run's last digits "
      "differ "
      "from one that doesn't change (SHERD_ISA)",
      saved.empty() ? "another device" : saved, own.empty() ? "another device" : own);
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
  promised_ = last || outcome.save_now;
  begin_save(done, outcome);
  while (saving_ && (promised_ || !checkpoints_.async)) advance(true);
}

void Checkpointing::finish() {
  while (saving_) advance(true);
  if (retention_) report_removals(retention_->finish());
}

void Checkpointing::begin_save(std::int64_t step, const StepOutcome& outcome) {
  CheckpointWord own;
  if (rank_.rank == 0) {
    const std::string uuid = checkpoint::make_save_uuid();
    for (std::size_t i = 0; i < 4; ++i) {
      own.save_uuid[i] = static_cast<double>(std::stoul(uuid.substr(8 * i, 8), nullptr, 16));
    }
    json global = {{"run", *checkpoints_.fingerprint},
                   {"counters", to_json(training_step_.counters())},
                   {"recipe", checkpoints_.recipe},
                   {"world_size", rank_.world_size()},
                   {"isa", isa_of(rank_)},
                   {"best_evaluation", to_json(outcome.best)},
                   {"folder", checkpoints_.folder},
                   {"vocabulary", json::array()}};
    if (model_.frozen().any()) {
      global["base"] = {{"digest", base_digest_}, {"path", checkpoints_.init_from}};
    }
    for (const char32_t character : checkpoints_.vocabulary) {
      global["vocabulary"].push_back(static_cast<std::uint32_t>(character));
    }
    if (outcome.validation_loss && std::isfinite(*outcome.validation_loss)) {
      global["validation_loss"] = *outcome.validation_loss;
    }
    global_ = std::make_shared<const json>(std::move(global));
  }
  const CheckpointWord first = words_.all_gather("save", own)[0];
  std::string uuid;
  for (const double part : first.save_uuid) {
    uuid += fmt::format("{:08x}", static_cast<std::uint32_t>(part));
  }
  // Telling one another has waited for the compute stream: what is saved has been computed.
  writer_->begin(step, uuid, owned_);
  saving_ = true;
  committing_ = false;
  saving_step_ = step;
}

}  // namespace sherd::engine
