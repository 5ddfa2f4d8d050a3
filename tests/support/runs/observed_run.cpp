#include "tests/support/runs/observed_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "core/error.h"
#include "engine/plan/report.h"
#include "engine/run/run.h"
#include "tests/checkpoint/support/hooked_disk.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const char* const kOutput = "out";

bool is_a_measurement(const std::string& key) {
  for (const char* part :
       {"tokens_per_s", "_ms", "peak_bytes", "isa", "sent_bytes", "seconds", "resident", "measured",
        "time", "uuid", "bytes_per_s", "goodput", "moved_s", "wall_s", "save_s", "write_mib_per_s",
        "data_wait_share", "slowest_rank"}) {
    if (key.find(part) != std::string::npos) return true;
  }
  return false;
}

json without_measurements(const json& value) {
  if (value.is_array()) {
    json rest = json::array();
    for (const json& item : value) rest.push_back(without_measurements(item));
    return rest;
  }
  if (!value.is_object()) return value;
  json rest = json::object();
  for (const auto& [key, item] : value.items()) {
    if (!is_a_measurement(key)) rest[key] = without_measurements(item);
  }
  return rest;
}

std::string metrics(const std::string& text) {
  std::string lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines += without_measurements(json::parse(line)).dump() + "\n";
  }
  return lines;
}

/// Each checkpoint's tensor digests and counters.
std::string checkpoints(const std::string& folder) {
  std::string all;
  for (const std::int64_t step : checkpoint::committed_steps(checkpoint::posix_disk(), folder)) {
    const checkpoint::Checkpoint saved(checkpoint::posix_disk(),
                                       folder + "/" + checkpoint::step_directory_name(step));
    for (const std::string& digest : checkpoint::tensor_digests(saved)) all += digest + "\n";
    json counters = saved.manifest().global->at("counters");
    counters.erase("credit");  // loss_scaling.hysteresis, also where nothing is scaled
    all += counters.dump() + "\n";
  }
  return all;
}

bool is_measured(const std::string& line) {
  for (const char* word :
       {"measured", "resident", "outside of the plan", "all arenas", "was left out"}) {
    if (line.find(word) != std::string::npos) return true;
  }
  return line.starts_with("goodput ") || line.starts_with("a step took ") ||
         line.find(" was the slowest ") != std::string::npos;
}

/// What a person sees, but no times, rates and measured memory.
std::string printed(std::string text, std::string& notes) {
  text = std::regex_replace(text, std::regex("  [^ \n]*[0-9.]+[kMG]? tok/s[^\n]*"), "");
  text = std::regex_replace(
      text, std::regex("(: [0-9]+ [KMG]iB/s per rank|, [0-9.]+ ms stalled)[^\n]*"), "");
  std::string lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find(" has no effect: ") != std::string::npos) {
      notes += line + "\n";
    } else if (!is_measured(line)) {
      lines += line + "\n";
    }
  }
  return lines;
}

std::string files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    std::string name = fs::relative(entry.path(), folder);
    if (name.find("tfevents") != std::string::npos) name = "tensorboard/events";
    names.push_back(name);
  }
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) all += name + "\n";
  return all;
}

void train(const engine::ResolvedRecipe& recipe, ObservedRun& run) {
  test::HookedDisk disk(test::HookedDisk::Before{});  // which waits for no disk
  std::string failure;
  ::testing::internal::CaptureStdout();
  try {
    engine::train(recipe, engine::cpu_machine(), disk);
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::string out = ::testing::internal::GetCapturedStdout();
  run.seen += printed(out, run.notes) + failure + "\n";
}

}  // namespace

ObservedRun observe(const test::TempFolder& folder, const Settings& settings) {
  const std::string output = folder.file(kOutput);
  fs::remove_all(output);
  Settings all = settings;
  if (!all.contains("run.output_dir")) all["run.output_dir"] = '"' + output + '"';
  ObservedRun run;
  std::optional<engine::ResolvedRecipe> recipe;
  try {
    recipe = engine::resolve_recipe(
        {.path = "keys.yaml", .text = recipe_text(all), .sets = {}, .ranks = {}});
  } catch (const Error& error) {
    run.refusal = error.what();
    return run;
  }
  train(*recipe, run);
  if (!fs::exists(output + "/metrics.jsonl")) {
    run.refusal = run.seen;
    return run;
  }
  run.seen += metrics(folder.read(std::string(kOutput) + "/metrics.jsonl")) +
              checkpoints(output + "/checkpoints") + files(output);
  return run;
}

std::string planned(const Settings& settings) {
  try {
    const auto recipe = engine::resolve_recipe(
        {.path = "keys.yaml", .text = recipe_text(settings), .sets = {}, .ranks = {}});
    const auto report = engine::plan_report(recipe, engine::device_limit(recipe.values));
    return engine::plan_json(report) + engine::plan_text(report);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace sherd::testing
