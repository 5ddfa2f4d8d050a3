#include "engine/run/run_setup.h"

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/offload/file_home.h"
#include "engine/offload/host_home.h"
#include "engine/plan/offload_report.h"
#include "engine/recipe/uses.h"
#include "engine/saving/checkpoint_path.h"

namespace sherd::engine {

std::string offload_folder(const Recipe& recipe) {
  const std::string& path = recipe.zero_optimization.offload_path;
  return path.empty() ? recipe.run.output_dir : path;
}

void prepare_output(const PreparedRun& run, const OutputFolder& output) {
  const Recipe& recipe = run.resolved.values;
  if (recipe.checkpoint.saves()) checkpoint::prepare_checkpoints(output.disk(), output.path());
}

// A tokenizer that the texts weren't encoded with isn't the model's.
void keep_model_files(const Recipe& recipe, const OutputFolder& output) {
  std::string tokenizer = recipe.data.tokenizer;
  const bool is_used = use_of("data.tokenizer")->holds(recipe);
  if (!is_used || !checkpoint::exists(output.disk(), tokenizer + "/tokenizer.json"))
    tokenizer.clear();
  if (recipe.model.from.empty() && tokenizer.empty()) return;
  huggingface::keep_files(output.disk(), output.path(), {recipe.model.from, tokenizer});
}

void prepare_offload(const PreparedRun& run, checkpoint::Disk& disk,
                     const std::function<void(const std::string&)>& say) {
  if (!run.prepared[0].options.offloads()) return;
  const WorldPlan& plan = run.prepared[run.largest].plan;
  const bool on_host = device_traits(run.resolved.values).separate_memory;
  const std::string line = offloaded_line(plan.offloaded_of(plan.worst_rank()), on_host);
  if (on_host) return say(line);
  const std::string folder = offload_folder(run.resolved.values);
  checkpoint::make_directory(disk, folder);
  say(fmt::format("{}, in {}", line, folder));
  if (const std::string remark = remark_on_folder(folder); !remark.empty()) {
    say("warning: " + remark);
  }
}

LaunchOptions planned_launch(const PreparedRun& run, std::size_t segment,
                             std::shared_ptr<const Machine> machine, checkpoint::Disk& disk) {
  LaunchOptions launch = launch_options(run.segments[segment].recipe.values, std::move(machine));
  const WorldPlan& plan = run.prepared[segment].plan;
  launch.plan = [&plan](int r) { return plan.of(r); };
  launch.host_plan = [&plan](int r) { return plan.host_of(r); };
  if (run.prepared[segment].options.offloads()) {
    const Recipe& recipe = run.resolved.values;
    launch.offload_home = [&plan, &disk, folder = offload_folder(recipe),
                           saves = recipe.checkpoint.saves()](const sharding::Rank& rank) {
      const MemoryPlan& offloaded = plan.offloaded_of(rank.rank);
      if (rank.separate_memory()) return make_host_home(offloaded, rank);
      checkpoint::make_directory(disk, folder);  // on each machine
      return make_file_home(offloaded, {.folder = folder, .snapshots = saves, .disk = &disk});
    };
  }
  return launch;
}

TrainerOptions segment_trainer(const PreparedRun& run, std::size_t segment,
                               const CheckpointOptions& checkpoints) {
  const Segment& of = run.segments[segment];
  const Recipe& recipe = of.recipe.values;
  return {
      .training = run.prepared[segment].options,
      .batches = run.batches[segment],
      // The same in all segments, so that their losses are over the same data.
      .evaluation_batch_size = run.resolved.values.training.global_batch_size,
      .compared_batches = recipe.training.eval_batches,
      .checkpoints = checkpoints,
      .best_from_step = of.cuts_anew ? of.first_step : -1,
      .evaluates_average = recipe.averages.evaluate && recipe.averages.type != AverageType::kNone,
      .tasks = run.tasks,
      .reference = recipe.run.output_dir + "/reference.safetensors",
      .teacher = run.teacher};
}

std::int64_t probable_steps(const Recipe& recipe, checkpoint::Disk& disk) {
  const std::string& resume = recipe.checkpoint.resume;
  try {
    const std::string directory = recipe.run.output_dir + "/checkpoints";
    if (resume != "auto" && resume != "never" && !has_begun_since(resume, directory, disk)) {
      return checkpoint::Checkpoint(disk, resume).manifest().step;
    }
    const auto found = checkpoint::committed_steps(disk, directory);
    return found.empty() ? 0 : found.front();
  } catch (const Error&) {  // the ranks report it when they load
    return 0;
  }
}

}  // namespace sherd::engine
