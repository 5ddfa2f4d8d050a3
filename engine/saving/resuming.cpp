#include "engine/saving/resuming.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "engine/saving/base_model.h"
#include "engine/saving/checkpoint_path.h"
#include "engine/saving/dealt_errors.h"
#include "engine/saving/initial_adapter.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/resume_check.h"
#include "engine/saving/run_state.h"
#include "engine/train/units/frozen_weights.h"
#include "kernels/isa.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {
namespace {

constexpr const char* kReading = "reading";

class Resuming {
 public:
  explicit Resuming(Checkpointing& shared)
      : shared_(shared),
        options_(shared.options()),
        checkpoints_(shared.checkpoints()),
        model_(shared.model()) {}

  Start begin();

 private:
  /// Its frozen parameters are an adapter's base, which its checkpoints don't hold.
  bool has_base() const { return options_.model.adapter.active(); }
  void load_base();
  void read_together(const std::function<void()>& read);
  void await_readers(const std::string& problem);
  int first_to_refuse(const std::string& path, const std::string& problem, std::int64_t step);
  [[noreturn]] void refuse_together(int refusing, const std::string& problem);
  void begin_with(const std::string& init_from);
  void publish();
  int load(const std::string& path, bool weights_only, std::string& problem);
  void load_frozen_part(const std::string& path, std::string& problem);
  ResumeCheck compare(const checkpoint::Checkpoint& checkpoint, bool weights_only) const;
  void note_changed_bits(const checkpoint::Manifest& manifest);
  void note_changed_replicas(int saved, std::int64_t step);
  /// Replicas with state of their own.
  int own_replicas() const { return replicas_of(state_tensors(options_)); }
  void resume_newest();

  Checkpointing& shared_;
  const TrainingOptions& options_;
  const CheckpointOptions& checkpoints_;
  ShardedModel& model_;
  Start start_;
  std::string changed_bits_;      // of a resume on an instruction set with other bits: what to say
  std::string changed_replicas_;  // of a resume with another number of replicas that train apart
};

Start Resuming::begin() {
  load_base();
  const std::string& resume = checkpoints_.resume;
  const bool exist = !checkpoint::committed_steps(shared_.disk(), checkpoints_.directory).empty();
  const bool is_path = resume != "auto" && resume != "never";
  const bool is_rewind = !checkpoints_.new_skips.empty();
  if (is_path && !is_rewind && has_begun_since(resume, checkpoints_.directory, shared_.disk())) {
    shared_.say(
        fmt::format("this run has begun: it continues from its own newest checkpoint, not "
                    "from {} (checkpoint.resume)",
                    resume));
    resume_newest();
    return start_;
  }
  if (is_path) {
    std::string problem;
    if (const int refusing = load(resume, false, problem); refusing >= 0) {
      if (is_rewind && !problem.empty()) {
        problem += " The run was going back to it; without it, it goes back further.";
      }
      refuse_together(refusing, problem);
    }
    shared_.say(fmt::format("resumed from {}: {} steps done", resume, start_.steps_done));
    if (!changed_replicas_.empty()) shared_.say(changed_replicas_);
    return start_;
  }
  if (resume == "never" && exist) {
    throw UsageError(
        "checkpoint.resume is never, but {} holds checkpoints. Choose another run.output_dir, move "
        "them away, or resume with --set checkpoint.resume=auto.",
        checkpoints_.directory);
  }
  if (exist) {
    resume_newest();
  } else if (!checkpoints_.init_from.empty()) {
    begin_with(checkpoints_.init_from);
    const std::string& adapter = checkpoints_.adapter;
    shared_.say(fmt::format("step 0, with the weights of {}{}", checkpoints_.init_from,
                            adapter.empty() ? "" : " and the adapter of " + adapter));
  } else {
    shared_.say(fmt::format("no checkpoint in {}: starting at step 0, from random weights",
                            checkpoints_.directory));
  }
  return start_;
}

// Frozen parameters come from the base, whether or not there is something to resume; so do those of
// modules that are trained, until a checkpoint is loaded over them. Whatever comes last is
// published.
void Resuming::load_base() {
  if (!has_base()) return;
  SHERD_CHECK(!checkpoints_.init_from.empty(), "an adapter without a model that it is for");
  const BaseModel base(options_, checkpoints_.init_from, shared_.disk());
  read_together([&] {
    start_.base_digest = load_base_model(base, options_, model_, shared_.reading(), shared_.copy());
  });
}

// Every rank reads, or none goes on.
void Resuming::read_together(const std::function<void()>& read) {
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

// A rank with much to read tells the others, by its copies, that it lives.
void Resuming::await_readers(const std::string& problem) try {
  shared_.wait_together(kReading, [](std::chrono::milliseconds) { return true; });
} catch (const PeerError&) {  // what this rank has found out isn't lost with another one
  if (!problem.empty()) throw DataError("{}", problem);
  throw;
}

// The first rank with a problem; -1: none has one.
int Resuming::first_to_refuse(const std::string& path, const std::string& problem,
                              std::int64_t step) try {
  const CheckpointWord own{.loaded = problem.empty() ? 1.0 : 0.0,
                           .step = static_cast<double>(step)};
  const std::vector<CheckpointWord> words = shared_.exchange("read", own);
  for (const CheckpointWord& word : words) {
    if (word.step != own.step) throw PeerError("ranks see different checkpoints in {}", path);
  }
  const auto found = std::ranges::find(words, 0.0, &CheckpointWord::loaded);
  return found == words.end() ? -1 : static_cast<int>(found - words.begin());
} catch (const PeerError&) {  // what this rank has found out isn't lost with another one
  if (!problem.empty()) throw DataError("{}", problem);
  throw;
}

// Rank `refusing` ends with its own problem, when all know that it will; the others with what that
// rank said. If a rank dies meanwhile, that is what they say.
void Resuming::refuse_together(int refusing, const std::string& problem) {
  const bool is_own = shared_.rank().rank == refusing;
  try {
    do {
      shared_.exchange("refuse", {});
    } while (!is_own);
  } catch (const PeerError& refusal) {
    if (!is_own) throw RefusedElsewhere(refusal.what());
  }
  throw DataError("{}", problem);
}

void Resuming::begin_with(const std::string& init_from) {
  auto& disk = shared_.disk();
  if (has_base()) {  // load_base has read the rest
    if (!checkpoints_.adapter.empty()) {
      read_together([&] {
        load_first_adapter(disk, checkpoints_.adapter, init_from, options_,
                           weights(options_, model_, Pieces::kHeld), shared_.copy());
      });
    }
    publish();
    return shared_.training_step().begin_average();
  }
  if (!checkpoint::is_model_folder(disk, init_from)) {
    std::string problem;
    if (const int refusing = load(init_from, true, problem); refusing >= 0) {
      refuse_together(refusing, problem);
    }
    return;
  }
  read_together([&] {
    if (model_.frozen().any()) {
      load_base_model({options_, init_from, disk}, options_, model_, shared_.reading(),
                      shared_.copy());
      return;
    }
    std::string problem;
    try {
      const huggingface::FolderWeights folder = open_folder_weights(disk, init_from, options_);
      folder.load(weights(options_, model_, Pieces::kHeld), shared_.reading(),
                  shared_.telling_copy(kReading));
    } catch (const DataError& error) {
      problem = error.what();
    }
    await_readers(problem);
    if (!problem.empty()) throw DataError("{}", problem);
  });
  publish();
  shared_.training_step().begin_average();
}

void Resuming::publish() {
  if (options_.placement.published_late) {
    return shared_.training_step().publish_kept(/*refresh=*/!start_.from_checkpoint);
  }
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    model_.publish(static_cast<int>(unit));
  }
}

// All ranks look, load and vote; one bad block on one rank, and all go back to the step before.
void Resuming::resume_newest() {
  auto& disk = shared_.disk();
  std::int64_t before = INT64_MAX;
  std::string problems;
  while (true) {
    checkpoint::Newest newest = checkpoint::newest_checkpoint(disk, checkpoints_.directory, before);
    for (const checkpoint::Refusal& refusal : newest.refused) {
      problems += fmt::format(" {}: {}", refusal.path, refusal.reason);
      shared_.say(fmt::format("{} is refused: {}", refusal.path, refusal.reason));
    }
    if (!newest.checkpoint) {
      throw DataError("{} holds no good checkpoint.{}", checkpoints_.directory, problems);
    }
    const std::string path = newest.checkpoint->path();
    before = newest.checkpoint->manifest().step;
    newest.checkpoint.reset();
    std::string problem;
    if (load(path, false, problem) < 0) {
      shared_.say(fmt::format("resumed from {}: {} steps done", path, start_.steps_done));
      if (!changed_bits_.empty()) shared_.say(changed_bits_);
      if (!changed_replicas_.empty()) shared_.say(changed_replicas_);
      return;
    }
    if (problem.empty()) {
      problem = "another rank found damaged bytes.";
    } else if (shared_.rank().rank != 0) {
      shared_.say_here(fmt::format("rank {}: {}", shared_.rank().rank, problem));
    }
    problems += " " + problem;
    shared_.say(fmt::format("{} is damaged: {} Trying the previous one.", path, problem));
  }
}

// The first rank that found bad bytes, -1 if none did; each of them has its problem in words. A
// checkpoint of another run throws on every rank alike.
int Resuming::load(const std::string& path, bool weights_only, std::string& problem) {
  problem.clear();
  const checkpoint::Checkpoint checkpoint(shared_.disk(), path);
  const int saved_replicas = replicas_of(checkpoint.manifest().tensors);
  const auto match =
      weights_only ? checkpoint::Match::kListedKinds : checkpoint::Match::kEverything;
  const sharding::State wanted =
      weights_only ? weights(options_, model_, Pieces::kHeld)
                   : run_state(options_, model_, shared_.training_step(), Pieces::kHeld,
                               replicas_saved(options_, checkpoint.manifest().tensors));
  const ResumeCheck check = compare(checkpoint, weights_only);
  if (weights_only) require_whole_model(checkpoint);
  if (has_base()) require_same_base(checkpoint, start_.base_digest, checkpoints_.init_from);
  if (!weights_only) note_changed_bits(checkpoint.manifest());
  if (!weights_only) note_changed_replicas(saved_replicas, checkpoint.manifest().step);
  checkpoint::check_match(checkpoint, wanted.tensors, match);
  TrainingStep::Counters counters;
  BestEvaluation best;
  if (!weights_only) {
    counters = counters_of(checkpoint);
    if (options_.average.type == optim::AverageType::kMean) {
      require_same_mean(check, options_.average.start_step, counters.num_updates, path);
    }
    best = best_evaluation_of(checkpoint);
  }
  try {
    // Another run may remove its own.
    if (weights_only || !path.starts_with(checkpoints_.directory)) require_held(checkpoint);
    checkpoint::load(checkpoint, wanted, match, shared_.reading(), shared_.telling_copy(kReading));
    if (!weights_only && options_.compression && own_replicas() != saved_replicas) {
      deal_out_errors(checkpoint, options_, model_, saved_replicas, shared_.reading());
    }
  } catch (const DataError& error) {
    problem = error.what();
  }
  await_readers(problem);
  if (saves_frozen(options_)) load_frozen_part(path, problem);
  const int refusing = first_to_refuse(path, problem, checkpoint.manifest().step);
  if (refusing >= 0) return refusing;
  if (!weights_only) {
    counters.scaler = resumed_scaler(counters.scaler, options_.loss_scaling, check);
    shared_.training_step().restore(counters);
    start_.steps_done = checkpoint.manifest().step;
    start_.from_checkpoint = true;
    start_.evaluated = validation_loss_of(checkpoint.manifest()).has_value();
    // Losses of another validation set can't be compared.
    const ValidatedOn now = shared_.validated_on();
    const bool is_same = validated_on(checkpoint.manifest()).value_or(now) == now;
    start_.best = check.has_changed("training.best_by") || !is_same ? BestEvaluation{} : best;
    start_.skips = checkpoints_.new_skips.empty() ? skips_of(checkpoint) : checkpoints_.new_skips;
  }
  publish();
  if (weights_only) shared_.training_step().begin_average();
  return -1;
}

// A collective, which also a rank with a problem takes part in.
void Resuming::load_frozen_part(const std::string& path, std::string& problem) {
  try {
    load_frozen({options_, path, shared_.disk()}, model_, shared_.reading());
  } catch (const DataError& error) {
    if (problem.empty()) problem = error.what();
  }
}

// Refuses another run, and prints what else is different.
ResumeCheck Resuming::compare(const checkpoint::Checkpoint& checkpoint, bool weights_only) const {
  const auto& global = *checkpoint.manifest().global;
  const auto& settings = *checkpoints_.fingerprint;
  ResumeCheck check = weights_only ? compare_models(global, settings)
                                   : compare_runs(global, settings, checkpoint.manifest().step);
  require_same_run(check, checkpoint.path());
  const std::string other = other_characters(global, checkpoints_.vocabulary);
  if (!other.empty() && !weights_only) {
    throw UsageError(
        "{}: {}: its texts have other characters. Resume with the texts of the checkpoint, also "
        "for validation, or start again in another run.output_dir.",
        checkpoint.path(), other);
  }
  if (!other.empty()) {
    shared_.say(fmt::format("warning: {}: {}: the model must learn again what its ids mean",
                            checkpoint.path(), other));
  }
  if (const std::string changes = changes_text(check); !changes.empty()) shared_.say(changes);
  return check;
}

// Instruction sets give the same bits, all but one (kernels/isa.h).
void Resuming::note_changed_bits(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("isa");
  const std::string saved = found != manifest.global->end() && found->is_string()
                                ? found->get<std::string>()
                                : std::string();
  const std::string own = isa_of(shared_.rank());
  const std::string_view amx = kernels::name_of(kernels::Isa::kAmx);
  changed_bits_.clear();
  if (options_.precision.parameters != DType::kBF16 || (saved == amx) == (own == amx)) return;
  changed_bits_ = fmt::format(
      "bf16 matmuls were computed with {} until here and continue with {}: the run's last "
      "digits differ from those of an unchanged run (SHERD_ISA)",
      saved.empty() ? "another device" : shown(saved), own.empty() ? "another device" : own);
}

// What a replica has trained since a fragment was last exchanged is its own.
void Resuming::note_changed_replicas(int saved, std::int64_t step) {
  const optim::LocalUpdates& local = options_.local_updates;
  changed_replicas_.clear();
  if (const int own = own_replicas(); options_.compression && own != saved) {
    changed_replicas_ = fmt::format(
        "{} replica{} instead of {}: each takes an equal share of {}", own, own == 1 ? "" : "s",
        saved,
        options_.compression->dion.active() ? "their momenta's sum" : "what hadn't been sent yet");
    return;
  }
  if (!local.active() || saved == local.num_replicas) return;
  changed_replicas_ = fmt::format(
      "{} replica{} instead of {}: all continue from the global weights{}", local.num_replicas,
      local.num_replicas == 1 ? "" : "s", saved,
      local.all_equal(step)
          ? fmt::format(", which are those of step {}", step)
          : "; what each has trained since its fragments were last exchanged is dropped");
}

}  // namespace

Start resume(Checkpointing& shared) {
  return Resuming(shared).begin();
}

}  // namespace sherd::engine
