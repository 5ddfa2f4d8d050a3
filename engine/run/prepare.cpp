#include "engine/run/prepare.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "engine/data/dataset.h"
#include "engine/data/shuffle.h"
#include "engine/data/utf8.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/plan/memory_report.h"
#include "engine/recipe/adapter_from.h"
#include "engine/recipe/device_rules.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/stored.h"
#include "engine/run/epochs.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/resume_check.h"
#include "engine/saving/run_state.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"
#include "engine/train/stage_epochs.h"

namespace sherd::engine {
namespace {

bool is_utf8(std::string_view text) {
  const auto bytes = data::as_bytes(text);
  int length = 1;
  for (std::size_t offset = 0; offset < bytes.size() && length > 0;
       offset += static_cast<std::size_t>(length)) {
    length = data::decode_utf8(bytes, offset).length;
  }
  return length > 0;
}

// What the recipe's relative paths are relative to; "" if a manifest can't hold it.
std::string current_folder() {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  return is_utf8(folder) ? folder : "";
}

// A manifest is JSON, so its text has to be UTF-8: found out now rather than by the first save.
void require_utf8(const ResolvedRecipe& resolved) {
  if (!resolved.values.checkpoint.saves()) return;
  std::string block;
  std::istringstream lines(resolved.yaml());
  for (std::string line; std::getline(lines, line);) {
    const std::string key = line.substr(0, line.find(':'));
    if (!line.starts_with(' ')) block = key;
    if (is_utf8(line)) continue;
    throw UsageError(
        "{}.{} isn't UTF-8 text, so a checkpoint can't contain it. Rename what it names, or train "
        "without checkpoints: checkpoint.interval=0.",
        block, key.substr(std::min(key.find_first_not_of(' '), key.size())));
  }
}

// The newest checkpoint of a run's folder, or of its folder of checkpoints; "" if `folder` is
// neither.
std::string newest_checkpoint_below(checkpoint::Disk& disk, const std::string& folder) {
  for (const std::filesystem::path& place :
       {std::filesystem::path(folder) / "checkpoints", std::filesystem::path(folder)}) {
    std::error_code error;
    if (!std::filesystem::is_directory(place, error)) continue;
    const auto steps = checkpoint::committed_steps(disk, place.string());
    if (!steps.empty()) return (place / checkpoint::step_directory_name(steps.front())).string();
  }
  return "";
}

// Models that are only evaluated.
void require_trainable(const Recipe& recipe) {
  if (recipe.moe.num_experts > 0 && recipe.moe.score == RouterScore::kSparsemixer) {
    throw UsageError(
        "moe.score is sparsemixer, whose training draws experts with noise and has a gradient of "
        "its own; that isn't supported. Such a model can be evaluated, merged and generated with.");
  }
  if (recipe.model.head_bias) {
    throw UsageError(
        "model.head_bias is true; the bias of a head can't be trained yet. Such a model can be "
        "evaluated, merged and generated with.");
  }
}

// Initial weights of another model are an error before anything is written.
void check_first_weights(checkpoint::Disk& disk, const Recipe& recipe,
                         const TrainingOptions& options) {
  const std::string folder = base_of(recipe);
  const std::string checkpoints = recipe.run.output_dir + "/checkpoints";
  if (folder.empty() || !checkpoint::committed_steps(disk, checkpoints).empty()) return;  // resumes
  if (checkpoint::is_model_folder(disk, folder)) {
    open_folder_weights(disk, folder, options);
    return;
  }
  const std::string& resume = recipe.checkpoint.resume;
  if (resume != "auto" && resume != "never")
    return;  // it may be gone, since other weights are read
  const std::string newest = newest_checkpoint_below(disk, folder);
  if (newest.empty()) {
    checkpoint::Checkpoint(disk, folder);  // reports what is wrong with it
    return;
  }
  throw UsageError(
      "checkpoint.init_from {}: is a directory of checkpoints, not a checkpoint; name one, such as "
      "the "
      "newest, {}.",
      folder, newest);
}

// Whether the run's ranks fit into what this machine has for them.
std::optional<std::string> check_memory(const ResolvedRecipe& recipe, const WorldPlan& plan,
                                        const Machine& machine) {
  DeviceLimit limit = device_limit(recipe.values, {}, machine.devices_here());
  const RanksHere here = machine.ranks_here(plan.world_size());
  limit.num_ranks = here.on_host;
  limit.first_rank = here.first;
  return check_fits(recipe, plan, limit);
}

// Questions must fit the sequences of every stage.
std::int64_t shortest_sequence(const std::vector<Segment>& segments) {
  std::int64_t shortest = segments[0].recipe.values.training.seq_length;
  for (const Segment& segment : segments) {
    shortest = std::min(shortest, segment.recipe.values.training.seq_length);
  }
  return shortest;
}

std::shared_ptr<const TeacherFile> open_teacher(const Recipe& recipe,
                                                const kernels::TeacherForm& form,
                                                const data::Batcher& batches,
                                                checkpoint::Disk& disk) {
  if (!form) return nullptr;
  const TeacherShape shape{.rows = batches.num_samples(recipe.training.max_steps),
                           .seq_length = recipe.training.seq_length,
                           .top = form.top,
                           .data = hash_of_samples(batches)};
  return std::make_shared<const TeacherFile>(disk, recipe.distillation.teacher, shape, form,
                                             recipe.model.vocab_size);
}

}  // namespace

std::size_t PreparedRun::segment_after(std::int64_t steps_done) const {
  std::size_t found = 0;
  while (found + 1 < segments.size() && segments[found + 1].first_step <= steps_done) ++found;
  return found;
}

// Known now, not when the first checkpoint has been computed.
void require_manifest(const Recipe& recipe, const TrainingOptions& options, std::int64_t ranks) {
  if (!recipe.checkpoint.saves()) return;
  const std::int64_t values =
      manifest_values(options, ranks, recipe.parallelism.pipeline_parallel_degree);
  if (values <= kMostManifestValues) return;
  throw UsageError(
      "a checkpoint of {} ranks would have about {} values in its manifest, and at most {} can be "
      "read. Use fewer ranks, or more pipeline ranks, which divide the layers.",
      ranks, values, kMostManifestValues);
}

PreparedRun prepare(const ResolvedRecipe& as_written, const Machine& machine,
                    checkpoint::Disk& disk) {
  const DeviceTraits device = machine.traits();
  require_possible_on(device.kind, as_written.values);
  require_trainable(as_written.values);
  const ResolvedRecipe written = with_stage_steps(as_written);
  PreparedRun run;
  run.resolved = written;
  run.segments = segments_of(written);
  for (const Segment& segment : run.segments) {
    const Recipe& recipe = segment.recipe.values;
    run.prepared.push_back({options_on_device(recipe), plan_world({recipe, device})});
    const auto bytes = [&](std::size_t i) { return run.prepared[i].plan.all_arenas_bytes(); };
    if (bytes(run.prepared.size() - 1) > bytes(run.largest)) run.largest = run.prepared.size() - 1;
  }
  const std::int64_t servers = written.values.parallelism.parameter_servers;
  require_manifest(written.values, run.prepared[0].options,
                   servers > 0 ? servers : run.prepared[0].plan.world_size());
  run.too_large =
      check_memory(run.segments[run.largest].recipe, run.prepared[run.largest].plan, machine);
  require_utf8(written);
  check_first_weights(disk, written.values, run.prepared[0].options);
  run.batches = open_batches(run.segments);
  run.resolved = with_epoch_steps(written, run.batches[0]->num_steps());
  if (run.num_segments() == 1 && written.values.training.num_epochs > 0) {
    run.segments[0].recipe = run.resolved;
    run.segments[0].end_step = run.resolved.values.training.max_steps;
  }
  for (std::size_t i = 0; i < run.num_segments(); ++i) {  // all that depends on the number of steps
    run.prepared[i].options.lr_schedule = run.segments[i].recipe.values.lr_schedule();
  }
  const Recipe::Training& training = run.resolved.values.training;
  require_few_epochs({run.segments, run.batches}, training.max_steps);
  run.tasks = open_tasks(written.values, shortest_sequence(run.segments));
  run.teacher = open_teacher(run.resolved.values, run.prepared[0].options.model.teacher,
                             *run.batches[0], disk);
  // A prompt that the vocabulary can't spell is an error now, not after the last step.
  if (training.sample_tokens > 0) run.dataset().text().ids(training.sample_prompt);
  return run;
}

std::string unlike_folder(checkpoint::Disk& disk, const Recipe& recipe) {
  const std::string folder = base_of(recipe);
  if (folder.empty() || folder == recipe.model.from || !checkpoint::is_model_folder(disk, folder)) {
    return "";
  }
  std::string text;
  const RecipeTexts now = compared_values(recipe);
  for (const auto& [key, value] : model_values(huggingface::read_config(disk, folder))) {
    const auto found = now.find(key);
    if (found == now.end() || found->second == value) continue;
    text += fmt::format("\n  {}: {} (folder: {})", key, found->second, value);
  }
  return text.empty() ? "" : fmt::format("unlike {}:{}", folder, text);
}

namespace {

// Of the text that the run's validation loss is over; 0: there is none.
std::uint64_t main_validation_data(const PreparedRun& run) {
  const data::Batcher& batches = *run.batches[0];
  if (batches.num_validation_sets() == 0) return 0;
  const auto& source = batches.validation_source(batches.main_validation());
  const Recipe::Training& training = run.resolved.values.training;
  const std::int64_t all = batches.num_validation_windows(batches.main_validation());
  const std::int64_t wanted = source.num_batches >= 0 ? source.num_batches : training.eval_batches;
  const std::int64_t rows = training.global_batch_size;
  const std::int64_t windows = wanted == 0 || wanted > all / rows ? all : wanted * rows;
  return data::hash_of(source.dataset->fingerprint(), windows);
}

}  // namespace

CheckpointOptions loading_options(const PreparedRun& run, checkpoint::Disk& disk) {
  const Recipe& recipe = run.resolved.values;
  const BadStepsKeys& bad = recipe.bad_steps;
  return {.directory = recipe.run.output_dir + "/checkpoints",
          .saves = recipe.checkpoint.saves(),
          .interval = recipe.checkpoint.interval,
          .async = recipe.checkpoint.async,
          .max_failed_saves = recipe.checkpoint.max_failed_saves,
          .keep = {.keep_last = static_cast<int>(recipe.checkpoint.keep_last),
                   .keep_every = recipe.checkpoint.keep_every,
                   .keep_best = static_cast<int>(recipe.checkpoint.keep_best),
                   .keep_behind = bad.rewind_after > 0 ? bad.rewind_after + bad.rewind_steps : 0},
          .resume = recipe.checkpoint.resume,
          .init_from = base_of(recipe),
          .adapter = begins_with_adapter(recipe) ? recipe.checkpoint.init_from : "",
          .max_steps = recipe.training.max_steps,
          .best_by = recipe.training.best_by,
          .validation_data = main_validation_data(run),
          .fingerprint = run_settings(recipe, fingerprints_of(recipe, run.batches)),
          .recipe = run.resolved.yaml(),
          .folder = current_folder(),
          .vocabulary = run.dataset().text().characters(),
          .disk = &disk};
}

CheckpointOptions checkpoint_options(const PreparedRun& run, const OutputFolder& output) {
  CheckpointOptions options = loading_options(run, output.disk());
  options.lock = output.lock();
  return options;
}

}  // namespace sherd::engine
