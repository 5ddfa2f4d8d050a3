/// A recipe of a second or two, its text, and the program run on them in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::engine {

class TrainCliTest : public ::testing::Test {
 protected:
  static constexpr int kSteps = 6;
  static constexpr std::size_t kTextBytes = 4001;

  TrainCliTest() {
    folder_.write("text.txt", text(kTextBytes));
    folder_.write("tiny.yaml", R"(model:
  num_layers: 2
  hidden_size: 32
  num_attention_heads: 4
  num_kv_heads: 2
  vocab_size: 128
data:
  path: PATH
training:
  seq_length: 16
  global_batch_size: 12
  gradient_accumulation_steps: 1
  max_steps: 6
  eval_interval: 3
  eval_batches: 2
  final_eval: whole
  sample_tokens: 20
  sample_prompt: "the "
optimizer:
  lr: 1e-2
metrics:
  log_interval: 2
)");
  }

  static std::string text(std::size_t bytes) {
    const char* words[] = {"the ",   "quick ", "brown ", "fox ",
                           "jumps ", "over ",  "lazy ",  "dogs.\n"};
    std::string text;
    for (unsigned i = 0; text.size() < bytes; ++i) text += words[(i * i + i / 3) % 8];
    return text.substr(0, bytes);
  }

  std::vector<std::string> arguments(const std::string& name,
                                     const std::vector<std::string>& extra) const {
    std::vector<std::string> all = {"train", folder_.file("tiny.yaml"),
                                    "--set", "data.path=" + folder_.file("text.txt"),
                                    "--set", "run.output_dir=" + folder_.file(name)};
    all.insert(all.end(), extra.begin(), extra.end());
    return all;
  }

  /// `sherd train tiny.yaml` with output in `folder`/`name`, and whatever `extra` says.
  test::ProgramOutcome train(
      const std::string& name, const std::vector<std::string>& extra = {},
      const std::function<void(pid_t, const std::string&)>& on_line = {}) const {
    return test::run_program(SHERD_PROGRAM, arguments(name, extra), on_line);
  }

  /// The same from a shell: `script` runs the program and its arguments as "$0" "$@".
  test::ProgramOutcome train_by(
      const std::string& script, const std::string& name,
      const std::vector<std::string>& extra = {},
      const std::function<void(pid_t, const std::string&)>& on_line = {}) const {
    std::vector<std::string> words = {"-c", script, SHERD_PROGRAM};
    for (const std::string& argument : arguments(name, extra)) words.push_back(argument);
    return test::run_program("/bin/bash", words, on_line);
  }

  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  /// metrics.jsonl of run `name`: every line parsed but the first, which says the version; the last
  /// one ended.
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    const std::string text = folder_.read(name + "/metrics.jsonl");
    EXPECT_TRUE(text.ends_with('\n')) << name;
    std::vector<nlohmann::json> lines;
    for (const std::string& line : lines_of(text)) lines.push_back(nlohmann::json::parse(line));
    if (!lines.empty()) {
      EXPECT_EQ(lines[0], nlohmann::json({{"metrics_version", 2}}));
      lines.erase(lines.begin());
    }
    return lines;
  }
  /// One key of all step lines (or, with val_loss, of all evaluation lines).
  std::vector<double> column(const std::string& name, const std::string& key) const {
    std::vector<double> values;
    for (const nlohmann::json& line : metrics(name)) {
      if (line.contains(key)) values.push_back(line.at(key));
    }
    return values;
  }

  /// The run must end before training with `exit_code` and one line on stderr that has all `parts`.
  void expect_refused(const std::vector<std::string>& extra, int exit_code,
                      const std::vector<std::string>& parts) const {
    const test::ProgramOutcome outcome = train("refused", extra);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sherd: ")) << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in\n" << outcome.err;
    }
    EXPECT_EQ(outcome.out, "") << "said before " << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.file("refused/metrics.jsonl"))) << outcome.err;
  }

  test::TempFolder folder_;
};

}  // namespace sherd::engine
