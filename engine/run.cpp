#include "engine/run.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/output_lock.h"
#include "engine/data/dataset.h"
#include "engine/device.h"
#include "engine/memory_report.h"
#include "engine/model/parameters.h"
#include "engine/output_folder.h"
#include "engine/progress.h"
#include "engine/rank_run.h"
#include "engine/stop_request.h"

namespace sherd::engine {
namespace {

std::string model_line(const TrainingOptions& options, const Recipe& recipe) {
  return fmt::format("{}: {:.2f} M parameters, stage {}, {} steps of {} tokens", recipe.run.name,
                     static_cast<double>(model::num_parameters(options.model)) / 1e6,
                     recipe.zero_optimization.stage, recipe.training.max_steps,
                     options.tokens_per_step(static_cast<int>(recipe.world_size())));
}

// What must agree for a resume to be the same run. Learning rate, length and layout may change.
std::shared_ptr<const nlohmann::json> fingerprint_of(const ResolvedRecipe& resolved,
                                                     const data::Dataset& dataset) {
  const Recipe& recipe = resolved.values;
  nlohmann::json keys = {
      {"run.seed", std::to_string(recipe.run.seed)},
      {"training.seq_length", recipe.training.seq_length},
      {"training.global_batch_size", recipe.training.global_batch_size},
      {"data (fingerprint)", fmt::format("{:016x}", dataset.fingerprint())},
      {"optimizer.type", static_cast<int>(recipe.optimizer.type)},
      {"mixed_precision.param_dtype", static_cast<int>(recipe.mixed_precision.param_dtype)},
      {"model.dropout", recipe.model.dropout},
  };
  return std::make_shared<const nlohmann::json>(std::move(keys));
}

CheckpointOptions checkpoint_options(const ResolvedRecipe& resolved, const data::Dataset& dataset) {
  const Recipe& recipe = resolved.values;
  return {.directory = recipe.run.output_dir + "/checkpoints",
          .saves = recipe.checkpoint.saves(),
          .interval = recipe.checkpoint.interval,
          .async = recipe.checkpoint.async,
          .keep = {.keep_last = static_cast<int>(recipe.checkpoint.keep_last),
                   .keep_every = recipe.checkpoint.keep_every,
                   .keep_best = static_cast<int>(recipe.checkpoint.keep_best)},
          .resume = recipe.checkpoint.resume,
          .init_from = recipe.checkpoint.init_from,
          .max_steps = recipe.training.max_steps,
          .fingerprint = fingerprint_of(resolved, dataset),
          .recipe = resolved.yaml(),
          .vocabulary = dataset.text().characters()};
}

}  // namespace

void train(const ResolvedRecipe& resolved) {
  train(resolved, choose_device(resolved.values));
}

void train(const ResolvedRecipe& resolved, const Device& device) {
  const Recipe& recipe = resolved.values;
  const TrainingOptions options = training_options(recipe);
  const WorldPlan plan = plan_world(recipe, device);
  const auto too_large = check_fits(resolved, plan, device_limit(recipe));
  const auto dataset = data::open_dataset(data_options(recipe));
  // A prompt that the vocabulary can't spell is an error now, not after the last step.
  if (recipe.training.sample_tokens > 0) dataset->text().ids(recipe.training.sample_prompt);
  const data::Batcher batcher(dataset, batch_shape(recipe));
  prepare_output_folder(recipe.run.output_dir);
  const std::filesystem::path output(recipe.run.output_dir);
  const checkpoint::OutputLock lock(checkpoint::posix_disk(), recipe.run.output_dir);
  const CheckpointOptions checkpoints = checkpoint_options(resolved, *dataset);
  if (checkpoints.saves) prepare_output_folder(checkpoints.directory);

  Trace trace;
  LaunchOptions launch = launch_options(recipe);
  launch.trace = &trace;
  device.use_for(
      launch, [&](int r) { return plan.of(r); }, [&](int r) { return plan.host_of(r); });

  Progress progress;
  progress.message(model_line(options, recipe));
  progress.message(dataset->summary());
  progress.message(device_line(launch));
  progress.message(memory_table(plan));
  if (too_large) progress.message("warning: " + *too_large);
  const RunContext context{
      .recipe = recipe,
      .options = options,
      .batcher = batcher,
      .output = output,
      .progress = progress,
      .trace = trace,
      .checkpoints = checkpoints,
      .rates = device.measures_rates ? product_rates(recipe, launch) : ProductRates{}};
  install_stop_handlers(recipe.checkpoint.saves()
                            ? std::optional(std::chrono::seconds(recipe.checkpoint.stop_deadline))
                            : std::nullopt);
  std::vector<MeasuredMemory> measured(static_cast<std::size_t>(launch.world_size));
  run_ranks(launch, [&](sharding::Rank& rank) {
    run_rank(context, rank);
    measured[rank.rank] = measured_memory(rank);
  });
  const std::int64_t resident_bytes = peak_resident_bytes();
  write_file(output / "memory.json", memory_json(plan, measured, resident_bytes));
  progress.message(memory_comparison(plan, measured, resident_bytes));
  if (recipe.metrics.trace_steps) {
    write_file(output / "trace.json", trace.to_chrome_json());
    progress.message(fmt::format("trace of steps {} to {}: {}", recipe.metrics.trace_steps->first,
                                 recipe.metrics.trace_steps->last,
                                 (output / "trace.json").string()));
  }
}

}  // namespace sherd::engine
