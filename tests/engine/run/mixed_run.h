/// Runs on texts of two kinds, for tests that compare what runs computed.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/inspect.h"
#include "engine/launch/device.h"
#include "engine/run/run.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

using nlohmann::json;

class MixedRun : public ::testing::Test {
 protected:
  MixedRun() {
    std::string english, code;
    for (int i = 0; i < 900; ++i) {
      english += static_cast<char>('a' + i * i % 23);
      code += static_cast<char>('(' + i * 7 % 19);
    }
    folder_.write("english.txt", english);
    folder_.write("code.txt", code);
  }

  std::string recipe_text(const std::string& output, const std::string& data,
                          const std::string& training, const std::string& more = "") const {
    std::ostringstream text;
    text << "run: {output_dir: " << folder_.file(output) << "}\n"
         << "model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 256}\n"
         << "data: {" << data << "}\n"
         << "training: {seq_length: 8, global_batch_size: 12, micro_batch_size: 1, " << training
         << "}\n"
         << "zero_optimization: {stage: 2}\n"
         << "optimizer: {lr: 0.01}\n"
         << "lr_scheduler: {type: wsd, decay_steps: 60, wsd_decay_steps: 20}\n"
         << "bad_steps: {sigma: 2, window: 16}\n"
         << more;
    return text.str();
  }
  std::string sources() const {
    return fmt::format("sources: [{{path: {}, weight: 2}}, {{path: {}}}], validation_fraction: 0",
                       folder_.file("english.txt"), folder_.file("code.txt"));
  }

  /// Returns what the run says.
  std::string train(const std::string& text, int ranks = 1) const {
    return said_by_run(text, ranks);
  }

  std::vector<json> lines_of(const std::string& output, const char* key) const {
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    std::vector<json> found;
    for (std::string text; std::getline(lines, text);) {
      const json line = json::parse(text);
      if (line.contains(key)) found.push_back(line);
    }
    return found;
  }
  /// What each step computed.
  std::vector<json> steps_of(const std::string& output) const {
    std::vector<json> steps;
    for (const json& line : lines_of(output, "loss")) {
      steps.push_back({line["step"], line["loss"], line["grad_norm"], line["lr"],
                       line.value("bad_step", ""), line.value("source_tokens", json())});
    }
    return steps;
  }

  std::string saved(const std::string& output, int step) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", output, step));
  }

  std::vector<std::string> digests(const std::string& output, int step) const {
    return state_after(folder_, output, step);
  }

  test::TempFolder folder_;
};

}  // namespace sherd::testing
