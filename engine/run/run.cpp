#include "engine/run/run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "engine/data/dataset.h"
#include "engine/data/utf8.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/launch/process_machine.h"
#include "engine/model/parameters.h"
#include "engine/plan/memory_report.h"
#include "engine/recipe/adapter_from.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/stored.h"
#include "engine/recipe/written_family.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"
#include "engine/run/agreement.h"
#include "engine/run/epochs.h"
#include "engine/run/rank_run.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/resume_check.h"
#include "engine/train/from_recipe.h"
#include "engine/train/stop_request.h"

namespace sherd::engine {
namespace {

std::string model_line(const TrainingOptions& options, const Recipe& recipe) {
  const auto millions = [](std::int64_t count) { return static_cast<double>(count) / 1e6; };
  const std::string trained =
      options.model.adapter.active()
          ? fmt::format(" ({:.4g} M trained)",
                        millions(model::num_trained_parameters(options.model)))
          : "";
  return fmt::format("{}: {:.2f} M parameters{}, stage {}, {} steps of {} tokens", recipe.run.name,
                     millions(model::num_parameters(options.model)), trained,
                     recipe.zero_optimization.stage, recipe.training.max_steps,
                     options.tokens_per_step(mesh_of(recipe).degree(sharding::data_axes())));
}

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
        "{}.{} isn't UTF-8 text, so no checkpoint could hold it. Rename what it names, or train "
        "without checkpoints: checkpoint.interval=0.",
        block, key.substr(std::min(key.find_first_not_of(' '), key.size())));
  }
}

CheckpointOptions checkpoint_options(const ResolvedRecipe& resolved, const data::Dataset& dataset,
                                     const OutputFolder& output) {
  const Recipe& recipe = resolved.values;
  return {.directory = recipe.run.output_dir + "/checkpoints",
          .saves = recipe.checkpoint.saves(),
          .interval = recipe.checkpoint.interval,
          .async = recipe.checkpoint.async,
          .max_failed_saves = recipe.checkpoint.max_failed_saves,
          .keep = {.keep_last = static_cast<int>(recipe.checkpoint.keep_last),
                   .keep_every = recipe.checkpoint.keep_every,
                   .keep_best = static_cast<int>(recipe.checkpoint.keep_best)},
          .resume = recipe.checkpoint.resume,
          .init_from = base_of(recipe),
          .adapter = begins_with_adapter(recipe) ? recipe.checkpoint.init_from : "",
          .max_steps = recipe.training.max_steps,
          .fingerprint = run_settings(recipe, dataset.fingerprint()),
          .recipe = resolved.yaml(),
          .folder = current_folder(),
          .vocabulary = dataset.text().characters(),
          .disk = &output.disk(),
          .lock = output.lock()};
}

// The newest checkpoint of a run's folder, or of its folder of checkpoints; "" if `folder` is neither.
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

// What isn't the model's is an error before anything is written.
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
    return;  // it may be gone: another one's weights are read
  const std::string newest = newest_checkpoint_below(disk, folder);
  if (newest.empty()) {
    checkpoint::Checkpoint(disk, folder);  // says what is wrong with it
    return;
  }
  throw UsageError(
      "checkpoint.init_from {}: holds checkpoints and is none; name one of them, such as the "
      "newest, {}.",
      folder, newest);
}

// Settings of the folder whose weights are taken that the recipe's model doesn't have.
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

// NCCL can't add the contributions of some ranks alone.
void require_groups_of_replicas(const Recipe& recipe, DeviceKind kind) {
  const auto& degrees = recipe.parallelism;
  if (kind == DeviceKind::kCpu || degrees.batch_groups <= degrees.data_parallel_replicate_degree) {
    return;
  }
  throw UsageError(
      "parallelism.batch_groups is {}; on GPUs it can only be the number of replicas, {}.",
      degrees.batch_groups, degrees.data_parallel_replicate_degree);
}

// Canonical sums have no form on GPUs yet, and graphs none for what ranks exchange inside of layers.
void require_what_gpus_can(const Recipe& recipe, DeviceKind kind) {
  const auto& degrees = recipe.parallelism;
  if (kind == DeviceKind::kCpu) return;
  if (degrees.sum_order == SumOrderChoice::kCanonical) {
    throw UsageError(
        "parallelism.sum_order is canonical, which CPUs alone compute; use sum_order: rank, or set "
        "run.device: cpu.");
  }
  if (recipe.run.cuda_graphs &&
      degrees.tensor_parallel_degree * degrees.context_parallel_degree > 1) {
    throw UsageError(
        "run.cuda_graphs is true, but graphs can't hold what tensor or context ranks exchange; use "
        "cuda_graphs: false.");
  }
}

// Of a run that ends with such an error before it has begun nothing is worth keeping: what it was asked for is wrong.
bool is_refusal(const Error& error) {
  return dynamic_cast<const UsageError*>(&error) || dynamic_cast<const DataError*>(&error) ||
         dynamic_cast<const RefusedElsewhere*>(&error);
}

// What a rank's communicators were asked for last.
std::string calls_file(int rank) {
  return fmt::format("collectives_rank_{}.txt", rank);
}

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int r : ranks) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", r);
  return names;
}

// What each process has measured of its ranks; all of it on process 0, the others don't wait.
std::vector<MeasuredMemory> of_all_processes(sharding::Processes* processes, const RanksHere& here,
                                             std::vector<MeasuredMemory> measured,
                                             std::int64_t& resident_bytes) {
  static_assert(std::is_trivially_copyable_v<MeasuredMemory>);
  if (!processes) return measured;
  sharding::ControlLinks& links = processes->links();
  std::string word(reinterpret_cast<const char*>(&resident_bytes), sizeof resident_bytes);
  for (int r = here.first; r < here.first + here.count; ++r) {
    word.append(reinterpret_cast<const char*>(&measured[static_cast<std::size_t>(r)]),
                sizeof(MeasuredMemory));
  }
  if (processes->index() > 0) {
    links.say("measured memory", word);
    return measured;
  }
  std::size_t r = 0;
  resident_bytes = 0;
  for (const std::string& text : links.all_gather("measured memory", word)) {
    std::int64_t bytes = 0;
    std::memcpy(&bytes, text.data(), sizeof bytes);
    resident_bytes += bytes;
    for (int i = 0; i < here.count; ++i, ++r) {
      std::memcpy(&measured[r],
                  text.data() + sizeof bytes + sizeof(MeasuredMemory) * static_cast<std::size_t>(i),
                  sizeof(MeasuredMemory));
    }
  }
  return measured;
}

// What the run needs of the folders that its model and its tokenizer come from, when they are gone.
void keep_model_files(checkpoint::Disk& disk, const std::string& output, const Recipe& recipe) {
  std::string tokenizer = recipe.data.tokenizer;
  if (!checkpoint::exists(disk, tokenizer + "/tokenizer.json")) tokenizer.clear();
  if (recipe.model.from.empty() && tokenizer.empty()) return;
  huggingface::keep_files(disk, output, {recipe.model.from, tokenizer});
}

// What is known before the run's folder is made.
struct PreparedRun {
  const ResolvedRecipe& resolved;
  const TrainingOptions& options;
  const data::Dataset& dataset;
  const data::Batcher& batcher;
  const WorldPlan& plan;
  RanksHere here;
  const std::optional<std::string>& too_large;
  const OnStuck& on_stuck;
  std::atomic<bool>& has_begun;
};

void train_in(const OutputFolder& output, const PreparedRun& run,
              std::shared_ptr<const Machine> machine) {
  const Recipe& recipe = run.resolved.values;
  checkpoint::Disk& disk = output.disk();
  sharding::Processes* const processes = machine->processes();
  const bool first =
      run.here.first == 0;  // of all processes: the one that prints, and writes the files
  const CheckpointOptions checkpoints = checkpoint_options(run.resolved, run.dataset, output);
  if (first && checkpoints.saves) checkpoint::prepare_checkpoints(disk, output.path());
  if (first) keep_model_files(disk, output.path(), recipe);

  Trace trace;
  LaunchOptions launch = launch_options(recipe, std::move(machine));
  launch.trace = &trace;
  launch.plan = [&](int r) { return run.plan.of(r); };
  launch.host_plan = [&](int r) { return run.plan.host_of(r); };
  launch.stop_asked = [] { return stop_request() == StopRequest::kRequeue; };
  if (run.on_stuck) {
    launch.on_stuck = [&](const std::vector<int>& ranks, const std::exception_ptr& failure) {
      run.on_stuck(names_of(ranks), failure);
    };
  }
  // Called by the ranks' threads and by the one that looks after them.
  std::mutex files_of_calls;
  std::set<int> ranks_with_calls;
  launch.on_calls = [&](int r, const std::string& calls) {
    std::lock_guard lock(files_of_calls);
    try {
      output.replace_own(calls_file(r), calls);
      ranks_with_calls.insert(r);
    } catch (const std::exception&) {  // what has gone wrong is said by whom it happened to
    }
  };

  // mpirun gives a process a terminal of its own, and passes on what it reads there line by line.
  Progress progress = processes ? Progress(stdout, /*in_place=*/false, 0) : Progress();
  const auto say = [&](const std::string& text) {
    if (first) progress.message(text);
  };
  say(model_line(run.options, recipe));
  for (const std::string& note : run.resolved.notes) say(note);
  if (const std::string text = export_note(recipe); !text.empty()) say(text);
  if (const std::string text = unlike_folder(disk, recipe); !text.empty()) say(text);
  say(run.dataset.summary());
  if (const std::string text = run.batcher.summary(); !text.empty()) say(text);
  if (recipe.training.num_epochs > 0) say(epochs_line(recipe, run.batcher));
  say(device_line(launch));
  say(memory_table(run.plan));
  if (run.too_large) say("warning: " + *run.too_large);
  const RunContext context{.recipe = recipe,
                           .options = run.options,
                           .batcher = run.batcher,
                           .output = output,
                           .progress = progress,
                           .trace = trace,
                           .checkpoints = checkpoints,
                           .has_begun = run.has_begun,
                           .matmul_peak = launch.machine->matmul_peak(
                               run.options.model.dtype, run.here.count * launch.compute_threads())};
  // Among processes also without checkpoints: mpirun's SIGTERM after the death of one must not keep the
  // others from saying who has died.
  const bool asks = recipe.checkpoint.saves() || processes;
  install_stop_handlers(asks ? std::optional(std::chrono::seconds(recipe.checkpoint.stop_deadline))
                             : std::nullopt);
  // A run that comes to its end only took longer than a moment: nobody stood still.
  const auto forget_calls = [&] {
    for (const int r : ranks_with_calls) checkpoint::remove_file(disk, output.file(calls_file(r)));
  };
  std::vector<MeasuredMemory> measured(static_cast<std::size_t>(launch.world_size()));
  try {
    run_ranks(launch, [&](sharding::Rank& rank) {
      run_rank(context, rank);
      measured[rank.rank] = measured_memory(rank);
    });
  } catch (const Requeue&) {
    forget_calls();
    throw;
  }
  forget_calls();
  std::int64_t resident_bytes = peak_resident_bytes();
  measured = of_all_processes(processes, run.here, std::move(measured), resident_bytes);
  if (!first) return;
  output.replace("memory.json", memory_json(run.plan, measured, resident_bytes));
  progress.message(memory_comparison(run.plan, measured, resident_bytes));
  if (recipe.metrics.trace_steps) {
    output.replace("trace.json", trace.to_chrome_json());
    progress.message(fmt::format("trace of steps {} to {}: {}", recipe.metrics.trace_steps->first,
                                 recipe.metrics.trace_steps->last, output.file("trace.json")));
  }
}

}  // namespace

void train(const ResolvedRecipe& resolved, const OnStuck& on_stuck) {
  train(resolved, choose_machine(resolved.values), checkpoint::posix_disk(), on_stuck);
}

void train(const ResolvedRecipe& resolved, std::shared_ptr<sharding::Processes> processes,
           const OnStuck& on_stuck) {
  train(resolved, process_machine(std::move(processes), resolved.values), checkpoint::posix_disk(),
        on_stuck);
}

void train(const ResolvedRecipe& written, std::shared_ptr<const Machine> machine,
           checkpoint::Disk& disk, const OnStuck& on_stuck) {
  outlive_lost_output();
  require_groups_of_replicas(written.values, machine->traits().kind);
  require_what_gpus_can(written.values, machine->traits().kind);
  const WorldPlan plan = plan_world(written.values, machine->traits());
  const RanksHere here = machine->ranks_here(static_cast<int>(written.values.world_size()));
  sharding::Processes* const processes = machine->processes();
  DeviceLimit limit = device_limit(written.values);
  limit.num_ranks = here.on_host;
  const auto too_large = check_fits(written, plan, limit);
  require_utf8(written);
  check_first_weights(disk, written.values, training_options(written.values));
  const auto dataset = data::open_dataset(data_options(written.values));
  const data::Batcher batcher(dataset, batch_shape(written.values));
  const ResolvedRecipe resolved = with_epoch_steps(written, batcher.num_steps());
  const Recipe& recipe = resolved.values;
  const TrainingOptions options = options_on_device(recipe);
  // A prompt that the vocabulary can't spell is an error now, not after the last step.
  if (recipe.training.sample_tokens > 0) dataset->text().ids(recipe.training.sample_prompt);
  if (processes) require_same(*processes, facts_of_run(recipe, dataset->fingerprint()));
  const OutputFolder output = shared_output_folder(processes, disk, recipe.run.output_dir);
  std::atomic<bool> has_begun = false;
  try {
    train_in(output,
             {.resolved = resolved,
              .options = options,
              .dataset = *dataset,
              .batcher = batcher,
              .plan = plan,
              .here = here,
              .too_large = too_large,
              .on_stuck = on_stuck,
              .has_begun = has_begun},
             std::move(machine));
  } catch (const Error& error) {
    if (is_refusal(error) && !has_begun) {
      std::vector<std::string> own = huggingface::kept_names();
      own.emplace_back("checkpoints");
      output.take_back(own);
    }
    throw;
  }
}

}  // namespace sherd::engine
