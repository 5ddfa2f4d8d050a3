// Trainings on preferences: TRL's numbers, and the same bits at every stage, on every world, and
// after a resume.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/step_directory.h"
#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/models/tiny_llama.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json reference() {
  std::ifstream file(fs::path(SHERD_SOURCE_DIR) / "tests/reference/preferences.json");
  return json::parse(file);
}

void write_rows(const test::TempFolder& folder, const std::string& name, const json& rows) {
  std::string lines;
  for (const json& row : rows) lines += row.dump() + "\n";
  folder.write(name, lines);
}

using Settings = std::map<std::string, std::string>;

Settings settings_of(const test::TempFolder& folder, const std::string& output) {
  return {{"run.name", "preferences"},
          {"run.output_dir", folder.file(output)},
          {"run.device", "cpu"},
          {"run.num_threads", "1"},
          {"model.from", folder.file("model")},
          {"checkpoint.init_from", folder.file("model")},
          {"data.path", folder.file("rows.jsonl")},
          {"data.format", "chat"},
          {"data.validation_fraction", "0"},
          {"training.seq_length", "64"},
          {"training.max_steps", "5"},
          {"training.sample_tokens", "0"},
          {"lr_scheduler.type", "constant"},
          {"lr_scheduler.warmup_steps", "0"},
          {"gradient_clipping.max_norm", "0"},
          {"checkpoint.interval", "0"},
          {"metrics.tensorboard", "false"},
          {"preference.loss", "sigmoid"}};
}

std::string error_of(const Settings& settings) {
  engine::RecipeRequest request;
  request.path = "preferences.yaml";
  request.text = "run: {name: preferences}\n";
  for (const auto& [key, value] : settings) request.sets.push_back(key + "=" + value);
  try {
    const engine::ResolvedRecipe recipe = engine::resolve_recipe(request);
    engine::train(recipe, engine::choose_machine(recipe.values));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<json> run_steps(const test::TempFolder& folder, const std::string& output,
                            const Settings& changes) {
  Settings settings = settings_of(folder, output);
  for (const auto& [key, value] : changes) settings[key] = value;
  EXPECT_EQ(error_of(settings), "");
  return metrics_of(folder, output);
}

TEST(Preference, TrainsAsTrlDoes) {
  const json stored = reference();
  const test::TempFolder folder;
  test::write_tiny_llama(folder, "model", stored["config"]);
  int number = 0;
  for (const json& expected : stored["runs"]) {
    const std::string loss = expected["loss"], data = expected["data"];
    const json& rows = stored[loss == "kto" ? "judged" : "pairs"][data];
    write_rows(folder, "rows.jsonl", rows);
    const std::string count = std::to_string(rows.size());
    const std::vector<json> steps =
        run_steps(folder, fmt::format("trl-{}", number++),
                  {{"data.packing", "none"},
                   {"training.global_batch_size", count},
                   {"training.micro_batch_size", count},
                   {"optimizer.type", "sgd"},
                   {"optimizer.momentum", "0"},
                   {"optimizer.weight_decay", "0"},
                   {"optimizer.lr", fmt::format("{}", expected["rate"].get<double>())},
                   {"preference.loss", loss},
                   {"preference.beta", fmt::format("{}", expected["beta"].get<double>())},
                   {"preference.label_smoothing",
                    fmt::format("{}", expected["label_smoothing"].get<double>())}});
    ASSERT_EQ(steps.size(), expected["steps"].size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const auto& [key, value] : expected["steps"][i].items()) {
        ASSERT_TRUE(steps[i].contains(key)) << loss << " " << key;
        const double theirs = value, ours = steps[i][key];
        EXPECT_NEAR(ours, theirs, 2e-5 * std::max(1.0, std::abs(theirs)))
            << loss << " on " << data << ", step " << i + 1 << ", " << key;
      }
    }
  }
}

// Pairs of different lengths, so that rows have one to three of them.
json made_up_pairs(int count) {
  json rows;
  for (int i = 0; i < count; ++i) {
    rows.push_back(
        {{"prompt", std::string(static_cast<std::size_t>(1 + i % 4), 'q') + ":"},
         {"chosen", " " + std::string(static_cast<std::size_t>(2 + i * 5 % 9), 'a' + i % 5)},
         {"rejected", " " + std::string(static_cast<std::size_t>(1 + i * 3 % 7), 'k' + i % 3)}});
  }
  return rows;
}
json made_up_judgements(int count) {
  json rows;
  for (const json& pair : made_up_pairs(count)) {
    const bool label = rows.size() % 3 != 1;
    rows.push_back({{"prompt", pair["prompt"]},
                    {"completion", pair[label ? "chosen" : "rejected"]},
                    {"label", label}});
  }
  return rows;
}

struct Mesh {
  int world, stage, micro_steps;
  Settings more{};
};

class PreferenceLadder : public ::testing::Test {
 protected:
  PreferenceLadder() {
    test::write_tiny_llama(folder_, "model", reference()["config"]);
    write_rows(folder_, "pairs.jsonl", made_up_pairs(23));
    write_rows(folder_, "judged.jsonl", made_up_judgements(23));
  }
  Settings changes(const std::string& loss, const Mesh& mesh) const {
    Settings changes = {{"data.path", folder_.file(loss == "kto" ? "judged.jsonl" : "pairs.jsonl")},
                        {"data.validation_fraction", "0.2"},
                        {"training.global_batch_size", "4"},
                        {"training.gradient_accumulation_steps", std::to_string(mesh.micro_steps)},
                        {"training.max_steps", "4"},
                        {"training.eval_interval", "2"},
                        {"checkpoint.interval", "4"},
                        {"optimizer.lr", "0.01"},
                        {"preference.loss", loss},
                        {"parallelism.data_parallel_shard_degree", std::to_string(mesh.world)},
                        {"zero_optimization.stage", std::to_string(mesh.stage)}};
    for (const auto& [key, value] : mesh.more) changes[key] = value;
    return changes;
  }
  void expect_same(const std::string& loss, const Mesh& first, const std::vector<Mesh>& others) {
    const std::string one = fmt::format("{}-first{}", loss, ++number_);
    const std::vector<json> expected = run_steps(folder_, one, changes(loss, first));
    ASSERT_FALSE(expected.empty());
    for (const Mesh& mesh : others) {
      const std::string output = fmt::format("{}-{}", loss, ++number_);
      EXPECT_EQ(run_steps(folder_, output, changes(loss, mesh)), expected)
          << mesh.world << " ranks, stage " << mesh.stage;
      EXPECT_EQ(state_after(folder_, output, 4), state_after(folder_, one, 4));
    }
  }
  test::TempFolder folder_;
  int number_ = 0;
};

TEST_F(PreferenceLadder, StagesAndWorldsChangeNoBit) {
  const Mesh one{1, 0, 4};
  expect_same("sigmoid", one, {{4, 3, 1}, {2, 2, 2}, {1, 3, 4}});
  // Without a reduction in every micro-step, ranks add their micro-batches first.
  expect_same("sigmoid", {2, 0, 2}, {{2, 1, 2}});
  for (const char* loss : {"robust", "hinge", "ipo", "apo_zero", "apo_down"}) {
    expect_same(loss, one, {{2, 3, 2}});
  }
  expect_same("orpo", one, {{4, 2, 1}});
  expect_same("simpo", one, {{2, 2, 2}});
  expect_same("kto", one, {{4, 3, 1}, {2, 2, 2}});
}

TEST_F(PreferenceLadder, PipelinesPrecisionsAdaptersAndOffloadChangeNoBit) {
  const Settings pipeline = {{"parallelism.pipeline_parallel_degree", "2"}};
  expect_same("sigmoid", {1, 0, 4}, {{1, 0, 4, pipeline}, {2, 2, 2, pipeline}});
  const Settings bf16 = {{"mixed_precision.param_dtype", "bf16"}};
  Settings bf16_pipeline = bf16;
  bf16_pipeline.insert(pipeline.begin(), pipeline.end());
  expect_same("sigmoid", {1, 0, 4, bf16}, {{2, 3, 2, bf16}, {2, 2, 2, bf16_pipeline}});
  const Settings f16 = {{"mixed_precision.param_dtype", "f16"},
                        {"mixed_precision.reduce_dtype", "f32"}};
  expect_same("kto", {1, 0, 4, f16}, {{2, 2, 2, f16}});
  const Settings adapter = {{"adapter.type", "lora"}, {"adapter.rank", "2"}};
  expect_same("sigmoid", {1, 0, 4, adapter}, {{2, 3, 2, adapter}});
  const Settings nf4 = {
      {"adapter.type", "lora"}, {"adapter.rank", "2"}, {"adapter.base_dtype", "nf4"}};
  expect_same("sigmoid", {1, 0, 4, nf4}, {{2, 2, 2, nf4}});
  const Settings on_disk = {{"zero_optimization.offload_optimizer", "nvme"}};
  expect_same("sigmoid", {1, 0, 4}, {{2, 2, 2, on_disk}});
}

// Sums over tensor ranks round differently.
TEST_F(PreferenceLadder, TensorRanksAreNearOneRank) {
  const std::vector<json> one = run_steps(folder_, "one", changes("sigmoid", {1, 0, 4}));
  const std::vector<json> two = run_steps(
      folder_, "two", changes("sigmoid", {1, 0, 4, {{"parallelism.tensor_parallel_degree", "2"}}}));
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "val_loss", "rewards/margins"}) {
      if (!one[i].contains(key)) continue;
      EXPECT_NEAR(one[i][key].get<double>(), two[i][key].get<double>(), 1e-5) << key;
    }
  }
}

TEST_F(PreferenceLadder, BeginsWithLnTwoAndMarginsOfZero) {
  for (const char* adapter : {"none", "lora"}) {
    const std::vector<json> lines =
        run_steps(folder_, fmt::format("begin-{}", adapter),
                  changes("sigmoid", {2, 2, 2, {{"adapter.type", adapter}}}));
    EXPECT_EQ(lines[0]["loss"].get<double>(), std::log(2.0));
    EXPECT_EQ(lines[0]["rewards/margins"].get<double>(), 0.0);
    EXPECT_EQ(lines[0]["rewards/chosen"].get<double>(), 0.0);
    EXPECT_NE(lines[1]["rewards/margins"].get<double>(), 0.0);
  }
}

TEST_F(PreferenceLadder, AResumedRunOnAnotherWorldHasTheReferenceOfItsStart) {
  Settings whole = changes("sigmoid", {1, 0, 4});
  whole["checkpoint.interval"] = "2";
  const std::vector<json> expected = run_steps(folder_, "whole", whole);
  Settings part = whole;
  part["training.max_steps"] = "2";
  part["lr_scheduler.decay_steps"] = "4";
  run_steps(folder_, "parts", part);
  Settings rest = changes("sigmoid", {2, 3, 2});
  rest["checkpoint.interval"] = "2";
  EXPECT_EQ(run_steps(folder_, "parts", rest), expected);
  EXPECT_EQ(state_after(folder_, "parts", 4), state_after(folder_, "whole", 4));

  Settings named = rest;
  named["checkpoint.resume"] =
      folder_.file("parts/checkpoints/" + checkpoint::step_directory_name(2));
  run_steps(folder_, "elsewhere", named);
  EXPECT_EQ(state_after(folder_, "elsewhere", 4), state_after(folder_, "whole", 4));
  EXPECT_EQ(folder_.read("elsewhere/reference.safetensors"),
            folder_.read("whole/reference.safetensors"));

  rest["training.max_steps"] = "6";
  Settings again = settings_of(folder_, "parts");
  for (const auto& [key, value] : rest) again[key] = value;
  std::string bytes = folder_.read("parts/reference.safetensors");
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 4);
  folder_.write("parts/reference.safetensors", bytes);
  EXPECT_NE(error_of(again).find("isn't the reference of this run's checkpoint"),
            std::string::npos);
  fs::remove(folder_.file("parts/reference.safetensors"));
  EXPECT_NE(error_of(again).find("isn't there"), std::string::npos);
}

TEST_F(PreferenceLadder, UsesTheMemoryThatWasPlannedInEveryPhase) {
  for (const Mesh& mesh :
       {Mesh{2, 3, 2}, Mesh{1, 0, 4, {{"parallelism.tensor_parallel_degree", "2"}}},
        Mesh{2, 1, 2, {{"parallelism.pipeline_parallel_degree", "2"}}}}) {
    const std::string output = fmt::format("planned-{}", ++number_);
    run_steps(folder_, output, changes("sigmoid", mesh));
    const json memory = json::parse(folder_.read(output + "/memory.json"));
    const json &predicted = memory["predicted"]["by_rank"],
               &measured = memory["measured"]["by_rank"];
    ASSERT_EQ(predicted.size(), static_cast<std::size_t>(mesh.world * (mesh.more.empty() ? 1 : 2)));
    for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
      EXPECT_EQ(measured[rank]["by_phase"], predicted[rank]["by_phase"]) << output;
    }
  }
}

TEST_F(PreferenceLadder, WhatCannotBeIsRefusedByName) {
  const auto refused = [&](const Settings& more, std::string_view what) {
    Settings settings = settings_of(folder_, "refused");
    for (const auto& [key, value] : changes("sigmoid", {1, 0, 4})) settings[key] = value;
    for (const auto& [key, value] : more) settings[key] = value;
    const std::string error = error_of(settings);
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  refused({{"parallelism.context_parallel_degree", "2"}}, "context ranks have parts of them");
  refused({{"model.dropout", "0.1"}}, "model.dropout: 0");
  refused({{"data.unfit", "cut"}}, "no row is cut");
  refused({{"training.train_on", "all"}}, "training.train_on");
  refused({{"training.seq_length", "8"}}, "longer than a sequence");
  refused({{"data.path", folder_.file("judged.jsonl")}}, "has no \"chosen\"");
  write_rows(folder_, "equal.jsonl", {{{"prompt", "a"}, {"chosen", "b"}, {"rejected", "b"}}});
  refused({{"data.path", folder_.file("equal.jsonl")}, {"data.unfit", "error"}}, "are equal");
  write_rows(folder_, "empty.jsonl", {{{"prompt", "a"}, {"chosen", ""}, {"rejected", "b"}}});
  refused({{"data.path", folder_.file("empty.jsonl")}, {"data.unfit", "error"}},
          "\"chosen\" is empty");
}

}  // namespace
}  // namespace sherd::testing
