// A recipe becomes a run before anything is written.
#include "engine/run/prepare.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/format/strict_json.h"
#include "engine/launch/device.h"
#include "engine/saving/run_state.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrecision = "mixed_precision: {param_dtype: f32}";

std::string text_of(const test::TempFolder& folder) {
  return recipe_text(folder, "run",
                     {.precision = kPrecision,
                      .optimizer = "adamw",
                      .accumulation = "gradient_accumulation_steps: 1"});
}

engine::PreparedRun prepared(const std::string& text, const std::vector<std::string>& sets = {}) {
  engine::RecipeRequest request;
  request.path = "prepare.yaml";
  request.text = text;
  request.sets = sets;
  return engine::prepare(engine::resolve_recipe(request), *engine::cpu_machine(),
                         checkpoint::posix_disk());
}

std::set<std::string> files_in(const test::TempFolder& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    files.insert(entry.path().string());
  }
  return files;
}

std::int64_t values_of(const nlohmann::ordered_json& json) {
  std::int64_t values = 1;
  for (const auto& value : json) values += value.is_structured() ? values_of(value) : 1;
  return json.is_structured() ? values : 1;
}

TEST(Prepare, CountsAboutAsManyValuesAsAManifestHas) {
  for (const int ranks : {2, 6}) {
    const test::TempFolder folder;
    write_data(folder);
    said_by_run(text_of(folder), ranks);
    const std::string name = fmt::format("run/checkpoints/step-{:010}/manifest.json", kSteps);
    const nlohmann::ordered_json manifest = test::unframed(folder.read(name));
    const engine::PreparedRun run = prepared(text_of(folder));
    const std::int64_t counted = engine::manifest_values(run.prepared[0].options, ranks, 1);
    const std::int64_t found = values_of(manifest.at("shards"));
    EXPECT_LE(counted, found);
    EXPECT_GE(counted, found / 3) << "the ends count for much in a model of two layers";
  }
}

TEST(Prepare, RefusesMoreRanksThanAManifestCanDescribe) {
  const test::TempFolder folder;
  write_data(folder);
  const engine::TrainingOptions options =
      prepared(text_of(folder), {"model.num_layers=80", "model.hidden_size=256"})
          .prepared[0]
          .options;
  EXPECT_EQ(engine::kMostManifestValues, checkpoint::kMaxJsonValues);
  EXPECT_LT(engine::manifest_values(options, 13'000, 1), checkpoint::kMaxJsonValues);
  EXPECT_GT(engine::manifest_values(options, 14'000, 1), checkpoint::kMaxJsonValues);
  EXPECT_LT(engine::manifest_values(options, 65'536, 8), checkpoint::kMaxJsonValues);
}

TEST(Prepare, WritesNothingWhetherOrNotTheRunIsRefused) {
  const test::TempFolder folder;
  write_data(folder);
  folder.write("no_model/readme.txt", "nothing that could be trained further");
  const std::set<std::string> before = files_in(folder);
  prepared(text_of(folder));
  const std::string no_model = folder.file("no_model");
  for (const std::vector<std::string>& refused : std::vector<std::vector<std::string>>{
           {"memory.device_memory=1KiB"},
           {"data.path=" + folder.file("nowhere")},
           {"checkpoint.init_from=" + no_model},
           {"data.format=chars", "model.vocab_size=26", "training.sample_tokens=1",
            "training.sample_prompt=\"A\""}}) {
    EXPECT_NE(test::error_text<Error>([&] { prepared(text_of(folder), refused); }), "(no error)")
        << refused[0];
  }
  EXPECT_EQ(files_in(folder), before);
}

TEST(Prepare, KnowsTheStepsOfEpochsAndTheScheduleThatFollows) {
  const test::TempFolder folder;
  write_data(folder);
  std::string text = text_of(folder);
  const std::string max_steps = fmt::format("max_steps: {}", kSteps);
  text.replace(text.find(max_steps), max_steps.size(), "num_epochs: 3");
  const engine::PreparedRun run =
      prepared(text, {"lr_scheduler.type=cosine", "lr_scheduler.warmup_ratio=0.5"});
  const std::int64_t steps = run.batches[0]->num_steps();
  EXPECT_GT(steps, 2);
  EXPECT_EQ(run.resolved.values.training.max_steps, steps);
  EXPECT_EQ(run.prepared[0].options.lr_schedule.decay_steps, steps);
  EXPECT_EQ(run.prepared[0].options.lr_schedule.warmup_steps,
            run.resolved.values.lr_scheduler.warmup_steps);
  EXPECT_GT(run.prepared[0].options.lr_schedule.warmup_steps, 0);
}

}  // namespace
}  // namespace sherd::testing
