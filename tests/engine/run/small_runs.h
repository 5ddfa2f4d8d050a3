/// Runs of four steps in this process, with evaluations and checkpoints after steps 2 and 4.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/launch/device.h"
#include "engine/run/run.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

class SmallRuns : public ::testing::Test {
 protected:
  SmallRuns() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 23);
    folder_.write("text", text);
  }

  /// Trains, or continues, in folder `name`; returns what was printed.
  std::string train(const std::string& name, std::vector<std::string> sets = {},
                    int ranks = 1) const {
    const std::string recipe = fmt::format(
        "model: {{num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 256}}\n"
        "data: {{path: {}}}\n"
        "training: {{seq_length: 8, global_batch_size: 4, micro_batch_size: 1, max_steps: 4, "
        "eval_interval: 2}}\n"
        "optimizer: {{lr: 0.01}}\n"
        "checkpoint: {{interval: 2}}\n",
        folder_.file("text"));
    sets.push_back("run.output_dir=" + folder_.file(name));
    ::testing::internal::CaptureStdout();
    try {
      engine::train(engine::resolve_recipe(
                        {.path = "mine.yaml", .text = recipe, .sets = sets, .ranks = ranks}),
                    engine::cpu_machine());
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    return ::testing::internal::GetCapturedStdout();
  }

  /// The JSON objects in a file, one per line.
  std::vector<nlohmann::json> lines_of(const std::string& file) const {
    std::istringstream lines(folder_.read(file));
    std::vector<nlohmann::json> values;
    for (std::string text; std::getline(lines, text);) {
      values.push_back(nlohmann::json::parse(text));
    }
    return values;
  }
  /// Every value of a key in a run's metrics.jsonl.
  std::vector<nlohmann::json> column(const std::string& name, const char* key) const {
    std::vector<nlohmann::json> values;
    for (const nlohmann::json& line : lines_of(name + "/metrics.jsonl")) {
      if (line.contains(key)) values.push_back(line.at(key));
    }
    return values;
  }

  test::TempFolder folder_;
};

}  // namespace sherd::testing
