#include "tests/support/runs/small_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"

namespace sherd::testing {

using checkpoint::Checkpoint;
using checkpoint::posix_disk;

void write_data(const test::TempFolder& folder) {
  for (const auto& [name, length] :
       {std::pair("data/a.txt", 230), std::pair("data/b.txt", 170), std::pair("data/c.txt", 301)}) {
    std::string text;
    for (int i = 0; i < length; ++i) text += static_cast<char>('a' + (i * i + length * i / 3) % 26);
    folder.write(name, text);
  }
  folder.write("validation.txt", "the quick brown fox jumps over the lazy dog and runs away");
}

std::string recipe_text(const test::TempFolder& folder, const std::string& output,
                        const TrainingRun& run) {
  return fmt::format(
      "run: {{name: resume, output_dir: {0}/{1}, device: cpu, num_threads: 1}}\n"
      "model: {{num_layers: 2, hidden_size: 24, num_attention_heads: 4, num_kv_heads: 2, "
      "vocab_size: 128, max_seq_length: 9, dropout: {17}{14}}}\n"
      "data: {{path: {0}/data, format: bytes, validation_path: {0}/validation.txt{16}}}\n"
      "training: {{seq_length: {15}, global_batch_size: 12, {2}, max_steps: {3}, sample_tokens: "
      "0}}\n"
      "parallelism: {{data_parallel_shard_degree: {4}{12}}}\n"
      "zero_optimization: {{stage: {5}{13}}}\n"
      "optimizer: {{type: {6}, lr: 0.01}}\n"
      "checkpoint: {{interval: {7}, async: {8}, {11}}}\n"
      "{9}\n{10}\n",
      folder.path(), output, run.accumulation, kSteps, run.world, run.stage, run.optimizer,
      run.interval, run.async, run.precision, run.more, run.checkpoint,
      run.mesh.empty() ? "" : ", " + run.mesh, run.zero.empty() ? "" : ", " + run.zero, run.model,
      run.seq_length, run.data, run.dropout);
}

void train_in(const test::TempFolder& folder, const std::string& output, const TrainingRun& run) {
  engine::RecipeRequest request;
  request.path = "resume.yaml";
  request.text = recipe_text(folder, output, run);
  engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
  if (run.host_updates) {
    auto& zero = recipe.values.zero_optimization;
    zero.offload_update = zero.offload_optimizer = engine::OffloadDevice::kCpu;
    if (zero.stage == 3) zero.offload_param = engine::OffloadDevice::kCpu;
  }
  engine::train(recipe, run.machine ? run.machine : engine::choose_machine(recipe.values),
                *run.disk);
}

std::vector<nlohmann::json> metrics_of(const test::TempFolder& folder, const std::string& output) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(folder.read(output + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line);
    if (!parsed.contains("step")) continue;
    if (parsed.contains("saved") || parsed.contains("goodput")) continue;
    for (const char* key : {"tokens_per_s", "exposed_comm_ms", "exposed_disk_ms", "data_wait_ms",
                            "exposed_comm_ms_by_axis", "comm_cpu_ms", "peak_bytes", "isa",
                            "sent_bytes", "slowest_rank", "slowest_rank_ms", "median_rank_ms"}) {
      parsed.erase(key);
    }
    lines.push_back(std::move(parsed));
  }
  return lines;
}

std::vector<std::string> numbers_of(const test::TempFolder& folder, const std::string& output) {
  std::vector<std::string> lines;
  for (const nlohmann::json& line : metrics_of(folder, output)) lines.push_back(line.dump());
  return lines;
}

void expect_goes_on_at_every_stage(const test::TempFolder& folder, TrainingRun run,
                                   const std::vector<int>& worlds) {
  namespace fs = std::filesystem;
  run.zero = "grad_sync: every_micro_step";
  for (const int world : worlds) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {} on {}", stage, world));
      run.world = world;
      run.stage = stage;
      fs::remove_all(folder.file("again"));
      fs::copy(folder.file("whole"), folder.file("again"), fs::copy_options::recursive);
      fs::remove_all(folder.file("again/checkpoints/" + checkpoint::step_directory_name(kSteps)));
      train_in(folder, "again", run);
      EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, "again"));
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, "again"));
    }
  }
}

std::string said_by_run(const std::string& text, int ranks) {
  ::testing::internal::CaptureStdout();
  try {
    engine::train(
        engine::resolve_recipe({.path = "mine.yaml", .text = text, .sets = {}, .ranks = ranks}),
        engine::cpu_machine());
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

std::vector<std::string> state_after(const test::TempFolder& folder, const std::string& output,
                                     int step) {
  return checkpoint::tensor_digests(Checkpoint(
      posix_disk(), folder.file(output + "/checkpoints/" + checkpoint::step_directory_name(step))));
}

std::vector<std::string> final_state(const test::TempFolder& folder, const std::string& output) {
  const std::string path =
      folder.file(output + "/checkpoints/" + checkpoint::step_directory_name(kSteps));
  std::vector<std::string> digests = state_after(folder, output, kSteps);
  digests.push_back(Checkpoint(posix_disk(), path).manifest().global->at("counters").dump());
  return digests;
}

}  // namespace sherd::testing
