// The power goes at any moment of a whole run: of all that it writes into its output folder, not of
// checkpoints alone. Whatever disk is found then, the newest checkpoint's steps are all in
// metrics.jsonl, and every other file is whole or not there.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/store/committed.h"
#include "tests/checkpoint/support/power_loss_model.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

using checkpoint::step_of_directory;
using test::AfterPowerLoss;
using test::DiskCall;
using test::ModelDisk;
using test::Node;
using Names = AfterPowerLoss::Names;
using Trace = std::vector<DiskCall>;

/// All that a run of 8 steps does to the disk, a save after every second one; and then another one
/// that finds everything done, and puts its files in order.
Trace record() {
  Trace trace;
  const test::TempFolder folder;
  write_data(folder);
  test::HookedDisk disk({}, [&](const DiskCall& call, std::int64_t result) {
    if (result >= 0) trace.push_back(test::as_played(call, result, folder.path()));
  });
  TrainingRun run{.stage = 1,
                  .world = 2,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .async = false,  // or a later step's lines may be durable before they have to be
                  .interval = 2,
                  .disk = &disk};
  train_in(folder, "run", run);
  train_in(folder, "run", run);
  return trace;
}

/// Where the last line of the first `step` steps ends, if all of them are there; otherwise -1.
std::int64_t end_of_steps_before(std::int64_t step, const std::string& metrics) {
  std::set<std::int64_t> found;
  std::int64_t end = 0;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_discarded()) return -1;
    if (!parsed.contains("loss") || parsed.at("step") > step) continue;
    found.insert(parsed.at("step").get<std::int64_t>());
    end = lines.tellg();
  }
  return std::ssize(found) == step ? end : -1;
}

class Examination {
 public:
  /// "" or the first violation in a state that a power loss now may leave.
  std::string violation(const ModelDisk& disk, const std::set<std::int64_t>& acknowledged) {
    for (const Names& root : AfterPowerLoss::names_of(*disk.root())) {
      if (!root.contains("run")) {
        if (!acknowledged.empty()) return "the run's folder is gone";
        continue;
      }
      for (const Names& run : AfterPowerLoss::names_of(*root.at("run"))) {
        if (std::string found = of_run(run, acknowledged); !found.empty()) return found;
      }
    }
    return "";
  }

 private:
  static std::string of_run(const Names& run, const std::set<std::int64_t>& acknowledged) {
    for (const char* name : {"recipe.yaml", "memory.json"}) {
      const auto file = run.find(name);
      if (file == run.end()) continue;
      if (!AfterPowerLoss::is_surely(*file->second, AfterPowerLoss::seen_bytes(*file->second))) {
        return std::string(name) + " may be a part of itself";
      }
    }
    if (!run.contains("checkpoints")) {
      return acknowledged.empty() ? "" : "the folder of checkpoints is gone";
    }
    std::map<std::int64_t, bool> has_steps;  // the same question comes up in many states
    for (const Names& names : AfterPowerLoss::names_of(*run.at("checkpoints"))) {
      std::int64_t newest = 0;
      std::set<std::int64_t> missing = acknowledged;
      for (const auto& [name, node] : names) {
        const auto step = step_of_directory(name);
        if (!step) continue;
        newest = std::max(newest, *step);
        missing.erase(*step);
      }
      if (!missing.empty()) return "an acknowledged checkpoint is lost";
      const auto [known, is_new] = has_steps.emplace(newest, true);
      if (is_new && newest > 0) known->second = has_steps_before(newest, run);
      if (!known->second) {
        return "metrics.jsonl may lack steps of checkpoint " + std::to_string(newest);
      }
    }
    return "";
  }

  static bool has_steps_before(std::int64_t step, const Names& run) {
    const auto metrics = run.find("metrics.jsonl");
    if (metrics == run.end()) return false;
    const std::string seen = AfterPowerLoss::seen_bytes(*metrics->second);
    const std::int64_t end = end_of_steps_before(step, seen);
    if (end < 0) return false;
    const std::string needed = seen.substr(0, static_cast<std::size_t>(end));
    return AfterPowerLoss::surely(
        *metrics->second, [&needed](const std::string& made) { return made.starts_with(needed); });
  }
};

/// "" or the violation, and after which call. `left_out`: a call that the disk never hears of.
std::string examine(const Trace& trace, int left_out = -1) {
  ModelDisk disk;
  Examination examination;
  std::set<std::int64_t> acknowledged;
  for (int i = 0; i < static_cast<int>(trace.size()); ++i) {
    const DiskCall& call = trace[static_cast<std::size_t>(i)];
    // A line says that a checkpoint is saved; a checkpoint that is removed loses its name first.
    const std::size_t saved = call.bytes.find("\"saved\":");
    if (call.path == "/root/run/metrics.jsonl" && saved != std::string::npos) {
      acknowledged.insert(std::stoll(call.bytes.substr(saved + 8)));
    }
    if (call.name == "rename_new" && step_of_directory(test::name_in(call.path))) {
      acknowledged.erase(*step_of_directory(test::name_in(call.path)));
    }
    const bool changes = call.name != "pread" && call.name != "fstat" && call.name != "lstat" &&
                         call.name != "close" && call.name != "list" && call.name != "flock";
    if (!changes) continue;
    if (i != left_out) disk.play(call);
    if (std::string found = examination.violation(disk, acknowledged); !found.empty()) {
      return "power lost after call " + std::to_string(i) + " (" + call.what() + "): " + found;
    }
  }
  return "";
}

TEST(RunPowerLoss, LeavesAllStepsOfTheNewestCheckpointInTheMetricsAndOtherFilesWhole) {
  const Trace trace = record();
  EXPECT_EQ(examine(trace), "");

  // It would find what is missing: each of these calls is needed.
  int num_metrics = 0, num_recipe = 0;
  for (int i = 0; i < static_cast<int>(trace.size()); ++i) {
    const DiskCall& call = trace[static_cast<std::size_t>(i)];
    if (call.name != "fsync") continue;
    const bool of_metrics = call.path == "/root/run/metrics.jsonl" && num_metrics < 3;
    const bool of_recipe = call.path == "/root/run/recipe.yaml.tmp";
    num_metrics += of_metrics;
    num_recipe += of_recipe;
    if (of_metrics || of_recipe) {
      EXPECT_NE(examine(trace, i), "") << i << " " << call.what();
    }
  }
  EXPECT_EQ(num_metrics, 3);
  EXPECT_EQ(num_recipe, 2);
}

TEST(RunPowerLoss, FindsMetricsThatAreNotDurableUnderTheirName) {
  Trace trace = record();
  std::erase_if(
      trace, [](const DiskCall& call) { return call.name == "fsync" && call.path == "/root/run"; });
  EXPECT_NE(examine(trace), "");
}

}  // namespace
}  // namespace sherd::testing
