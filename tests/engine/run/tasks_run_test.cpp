// Runs with tasks, losses of their sources, bits per byte, and stages in epochs.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "checkpoint/inspect.h"
#include "core/error.h"
#include "engine/inference/evaluate.h"
#include "engine/launch/device.h"
#include "engine/report/run_history.h"
#include "engine/run/run.h"
#include "engine/run/run_report.h"
#include "engine/run/show_data.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using nlohmann::json;

class TasksRun : public ::testing::Test {
 protected:
  TasksRun() {
    std::string english, code, held;
    for (int i = 0; i < 900; ++i) {
      english += static_cast<char>('a' + i * i % 23);
      code += static_cast<char>('(' + i * 7 % 19);
      held += static_cast<char>('a' + (i * i + i) % 23);
    }
    folder_.write("english.txt", english);
    folder_.write("code.txt", code);
    folder_.write("held.txt", held.substr(0, 161));
    std::string lines = "{\"sherd_task\": 1, \"vocab_size\": 256}\n";
    for (int i = 0; i < 23; ++i) {
      json question = {{"context", json::array()}, {"answer", i % 3}};
      for (int t = 0; t < 1 + i % 5; ++t) question["context"].push_back('a' + (i + t) * i % 23);
      for (int choice = 0; choice < 3; ++choice) {
        json ids;
        for (int t = 0; t < 1 + (i + choice) % 4; ++t) ids.push_back('a' + (i * choice + t) % 23);
        question["choices"].push_back(ids);
        question["bytes"].push_back(1 + (i + choice) % 4);
      }
      lines += question.dump() + "\n";
    }
    folder_.write("letters.jsonl", lines);
  }

  std::string recipe_text(const std::string& output, const std::string& data,
                          const std::string& training, const std::string& more = "") const {
    return fmt::format(
        "run: {{output_dir: {}}}\n"
        "model: {{num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 256}}\n"
        "data: {{{}}}\n"
        "training: {{seq_length: 8, global_batch_size: 12, micro_batch_size: 1, {}}}\n"
        "optimizer: {{lr: 0.01}}\n"
        "lr_scheduler: {{type: constant}}\n"
        "zero_optimization: {{stage: 2}}\n"
        "checkpoint: {{interval: 1000}}\n{}",
        folder_.file(output), data, training, more);
  }
  std::string held() const {
    return fmt::format("validation_sets: [{{path: {}}}]", folder_.file("held.txt"));
  }
  std::string english() const { return "path: " + folder_.file("english.txt") + ", " + held(); }
  std::string sources() const {
    return fmt::format("sources: [{{path: {}, weight: 2}}, {{path: {}}}], validation_fraction: 0",
                       folder_.file("english.txt"), folder_.file("code.txt"));
  }
  std::string tasks() const {
    return fmt::format("tasks: [{{path: {}}}]", folder_.file("letters.jsonl"));
  }

  std::string train(const std::string& text, int ranks = 1,
                    const std::vector<std::string>& sets = {}) const {
    ::testing::internal::CaptureStdout();
    try {
      engine::train(
          engine::resolve_recipe({.path = "mine.yaml", .text = text, .sets = sets, .ranks = ranks}),
          engine::cpu_machine());
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    return ::testing::internal::GetCapturedStdout();
  }
  template <class Error>
  std::string refusal(const std::string& text) const {
    const std::string error = test::error_text<Error>([&] { train(text); });
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
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
  // What each step computed.
  std::vector<json> steps_of(const std::string& output, bool with_sources = false) const {
    std::vector<json> steps;
    for (const json& line : lines_of(output, "grad_norm")) {
      steps.push_back({line["step"], line["loss"], line["grad_norm"], line["lr"]});
      if (!with_sources) continue;
      steps.back().push_back(line["source_tokens"]);
      for (const char* key : {"loss/english", "loss/code"}) {
        steps.back().push_back(line.value(key, json()));
      }
    }
    return steps;
  }
  std::vector<std::string> digests(const std::string& output, int step) const {
    return state_after(folder_, output, step);
  }

  test::TempFolder folder_;
};

TEST_F(TasksRun, AnswersQuestionsWithoutChangingTheTraining) {
  train(recipe_text("plain", english(), "max_steps: 6"));
  const std::string said = train(recipe_text(
      "run", english(), "max_steps: 6, eval_interval: 2, eval_at_start: true, " + tasks()));
  EXPECT_EQ(steps_of("run"), steps_of("plain"));
  EXPECT_EQ(digests("run", 6), digests("plain", 6));
  const std::vector<json> lines = lines_of("run", "task/letters/acc");
  ASSERT_EQ(lines.size(), 4u);
  for (const json& line : lines) {
    EXPECT_EQ(line["task/letters/questions"], 23);
    for (const char* key : {"task/letters/acc", "task/letters/acc_norm"}) {
      const double count = line[key].get<double>() * 23;
      EXPECT_NEAR(count, std::round(count), 1e-12) << "a number of questions";
    }
  }
  EXPECT_NE(said.find("; letters: "), std::string::npos) << said;
  EXPECT_NE(said.find(" of 23 right, "), std::string::npos) << said;

  const engine::RunHistory history = engine::read_history(folder_.file("run"));
  EXPECT_EQ(history.scores.at("letters: acc").size(), 4u);
  EXPECT_EQ(history.scores.at("letters: acc_norm").back().value, lines[3]["task/letters/acc_norm"]);
  EXPECT_EQ(history.scores.at("Bits per byte").size(), 4u);
  EXPECT_EQ(history.scores.size(), 3u);
  const std::string page = engine::report_page(engine::read_runs({folder_.file("run")}));
  EXPECT_NE(page.find("letters: acc_norm"), std::string::npos);

  const engine::TextLoss later = engine::evaluate_checkpoint(
      {.checkpoint = folder_.file("run/checkpoints/step-0000000006"), .sets = {}, .ranks = 1});
  ASSERT_EQ(later.tasks.size(), 1u);
  EXPECT_EQ(later.tasks[0].acc(), lines[3]["task/letters/acc"]);
  EXPECT_EQ(later.tasks[0].acc_norm(), lines[3]["task/letters/acc_norm"]);
}

TEST_F(TasksRun, HasTheSameAnswersOnAnyRanksAndAfterAResume) {
  const std::string training = "max_steps: 4, eval_interval: 2, " + tasks();
  const auto answers = [&](const std::string& output) {
    std::vector<json> found;
    for (const json& line : lines_of(output, "task/letters/acc")) {
      if (line["step"] > 0) found.push_back(line);
    }
    return found;
  };
  train(recipe_text("one", english(), "eval_at_start: true, " + training));
  const std::vector<json> one = answers("one");
  ASSERT_EQ(one.size(), 2u);
  train(recipe_text("two", english(), training), 2, {"zero_optimization.stage=3"});
  train(recipe_text("three", english(), training), 3);
  for (const char* output : {"two", "three"}) EXPECT_EQ(answers(output), one) << output;
  train(recipe_text("cut", english(), "max_steps: 2, eval_interval: 2, " + tasks()), 4);
  train(recipe_text("cut", english(), training));
  EXPECT_EQ(answers("cut"), one);

  // Their gradients are added in another order, so they begin alike.
  for (const std::string axis : {"pipeline", "context"}) {
    train(recipe_text(axis, english(), "eval_at_start: true, " + training), 1,
          {"parallelism." + axis + "_parallel_degree=2"});
    EXPECT_EQ(lines_of(axis, "task/letters/acc")[0], lines_of("one", "task/letters/acc")[0])
        << axis;
  }
}

TEST_F(TasksRun, RefusesTasksThatItCantAnswer) {
  EXPECT_NE(
      refusal<UsageError>(
          recipe_text("run", "path: " + folder_.file("english.txt") + ", validation_fraction: 0",
                      "max_steps: 2, " + tasks()))
          .find("training.tasks belong to evaluations, and there is nothing to evaluate on."),
      std::string::npos);
  EXPECT_NE(
      refusal<UsageError>(recipe_text("run", english(),
                                      fmt::format("max_steps: 2, tasks: [{{path: {0}}}, "
                                                  "{{path: {0}}}]",
                                                  folder_.file("letters.jsonl"))))
          .find("training.tasks[1] is called \"letters\", as another is; give it another name."),
      std::string::npos);
  const std::string stages = english() + ", stages: [{steps: 1}, {seq_length: 4}]";
  EXPECT_NE(refusal<DataError>(recipe_text("run", stages, "max_steps: 2, " + tasks()))
                .find("tokens, and sequences of 4 have room for 5."),
            std::string::npos);
}

TEST_F(TasksRun, SaysBitsPerByteWhereTokensHaveText) {
  train(recipe_text("bytes", english(), "max_steps: 2"));
  const json of_bytes = lines_of("bytes", "val_loss").back();
  EXPECT_EQ(of_bytes["bits_per_byte"].get<double>(),
            of_bytes["val_loss"].get<double>() * 160 / std::numbers::ln2 / 160);

  const std::string both =
      fmt::format("path: {}, validation_sets: [{{path: {}}}, {{name: more, path: {}}}]",
                  folder_.file("english.txt"), folder_.file("held.txt"), folder_.file("code.txt"));
  train(recipe_text("sets", both, "max_steps: 2"), 2);
  const json of_sets = lines_of("sets", "val_loss").back();
  EXPECT_EQ(of_sets["bits_per_byte/held"], of_sets["bits_per_byte"]);
  EXPECT_NEAR(of_sets["bits_per_byte/more"].get<double>(),
              of_sets["val_loss/more"].get<double>() / std::numbers::ln2, 1e-12);

  std::string ids;
  for (int i = 0; i < 400; ++i) {
    ids += static_cast<char>('a' + i * i % 23);
    ids += '\0';
  }
  const std::string bin = "format: bin, path: " + folder_.write("ids.bin", ids);
  train(recipe_text("bin", bin + ", validation_fraction: 0.2", "max_steps: 2"));
  EXPECT_FALSE(lines_of("bin", "val_loss").back().contains("bits_per_byte"));
}

class SourceLosses : public TasksRun {
 protected:
  std::string text(const std::string& output) const {
    return recipe_text(output, sources(), "max_steps: 6", "metrics: {source_losses: true}\n");
  }
};

TEST_F(SourceLosses, AddUpToTheLossAndLeaveTheTrainingAlone) {
  train(recipe_text("plain", sources(), "max_steps: 6"));
  train(text("run"));
  EXPECT_EQ(steps_of("run"), steps_of("plain"));
  EXPECT_EQ(digests("run", 6), digests("plain", 6));
  std::map<std::string, std::int64_t> before{{"english", 0}, {"code", 0}};
  for (const json& line : lines_of("run", "grad_norm")) {
    double sum = 0.0;
    for (auto& [name, tokens] : before) {
      const std::int64_t now = line["source_tokens"][name];
      sum += line["loss/" + name].get<double>() * static_cast<double>(now - tokens);
      tokens = now;
    }
    EXPECT_NEAR(sum / 96, line["loss"].get<double>(), 1e-14);
    EXPECT_NE(line["loss/english"], line["loss/code"]);
  }
  EXPECT_FALSE(lines_of("plain", "grad_norm")[0].contains("loss/english"));
  const engine::RunHistory history = engine::read_history(folder_.file("run"));
  EXPECT_EQ(history.source_losses.at("code").size(), 6u);
}

// Each source alone: a weight of 0 leaves the other out.
TEST_F(SourceLosses, OfAStageWithOneSourceAreTheLoss) {
  const std::string data = sources() + ", stages: [{steps: 2, weights: [1, 0]}, {weights: [0, 1]}]";
  train(recipe_text("run", data, "max_steps: 4", "metrics: {source_losses: true}\n"));
  const std::vector<json> steps = lines_of("run", "grad_norm");
  EXPECT_EQ(steps[1]["loss/english"], steps[1]["loss"]);
  EXPECT_FALSE(steps[1].contains("loss/code"));
  EXPECT_EQ(steps[2]["loss/code"], steps[2]["loss"]);
  EXPECT_FALSE(steps[2].contains("loss/english"));
}

TEST_F(SourceLosses, AreTheSameBitsOnAnyRanks) {
  train(text("one"));
  const std::vector<json> one = steps_of("one", true);
  train(text("two"), 2, {"zero_optimization.stage=3"});
  train(text("three"), 3);
  train(text("four"), 4,
        {"zero_optimization.stage=1", "zero_optimization.grad_sync=every_micro_step"});
  for (const char* output : {"two", "three", "four"}) {
    EXPECT_EQ(steps_of(output, true), one) << output;
  }
  const auto sources_of = [&](const std::string& output) {
    json line = lines_of(output, "grad_norm")[0];
    return std::pair(line["loss/english"], line["loss/code"]);
  };
  train(text("pipeline"), 1, {"parallelism.pipeline_parallel_degree=2"});
  train(text("context"), 1, {"parallelism.context_parallel_degree=2"});
  for (const char* output : {"pipeline", "context"}) {
    EXPECT_EQ(sources_of(output), sources_of("one")) << output;
  }
}

TEST_F(SourceLosses, CountTheTokensThatHaveATargetInSeparateDocuments) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    std::string words(static_cast<std::size_t>(3 + i % 7), static_cast<char>('a' + i % 23));
    lines += json{{"text", words}}.dump() + "\n";
  }
  const std::string data = fmt::format(
      "documents: separate, validation_fraction: 0, sources: [{{path: {}, weight: 2}}, {{name: "
      "english, path: {}}}]",
      folder_.write("code.jsonl", lines), folder_.write("english.jsonl", lines + lines));
  train(recipe_text("one", data, "max_steps: 3", "metrics: {source_losses: true}\n"));
  train(recipe_text("three", data, "max_steps: 3", "metrics: {source_losses: true}\n"), 3);
  EXPECT_EQ(steps_of("three", true), steps_of("one", true));
  for (const json& line : lines_of("one", "grad_norm")) {
    const double code = line["loss/code"], english = line["loss/english"], all = line["loss"];
    EXPECT_LE(std::min(code, english), all);
    EXPECT_GE(std::max(code, english), all);
  }
}

class StageEpochs : public TasksRun {
 protected:
  // Sequences of a source in an epoch: windows of 8 tokens.
  static constexpr int kSequences = (900 - 1) / 8 - 1;

  static std::string stage(const std::string& keys) { return ", stages: [{" + keys + "}, {}]"; }
};

TEST_F(StageEpochs, AreTheFewestWholeStepsThatUseThem) {
  const std::string path = "path: " + folder_.file("english.txt") + ", validation_fraction: 0";
  // 111 sequences, 12 in a step; 1.5 epochs are 166.5.
  ASSERT_EQ(kSequences, 111);
  for (const auto& [epochs, steps] :
       {std::pair("1", 10), std::pair("1.5", 14), std::pair("0.1", 1), std::pair("2", 19)}) {
    const std::string output = fmt::format("epochs{}", steps);
    train(recipe_text(output, path + stage(fmt::format("epochs: {}", epochs)), "max_steps: 20"));
    EXPECT_NE(folder_.read(output + "/recipe.yaml").find(fmt::format("{{steps: {}}}", steps)),
              std::string::npos)
        << epochs;
  }
}

TEST_F(StageEpochs, OfASourceAreAsLongAsTheStepsThatUseIt) {
  // English has two thirds of the sequences: 683 of 1,024.
  const auto data = [&](const std::string& first) {
    return sources() + ", stages: [{" + first + "}, {steps: 3, weights: [1, 3]}, {}]";
  };
  train(recipe_text("epochs", data("epochs: 1, epochs_of: english"), "max_steps: 20"));
  // The 111th sequence of english is the 166th: the first 165 have 110.
  train(recipe_text("steps", data("steps: 14"), "max_steps: 20"));
  EXPECT_EQ(steps_of("epochs"), steps_of("steps"));
  EXPECT_EQ(digests("epochs", 20), digests("steps", 20));
  const std::vector<json> steps = lines_of("epochs", "grad_norm");
  EXPECT_GE(steps[13]["source_tokens"]["english"], kSequences * 8);
  EXPECT_LT(steps[12]["source_tokens"]["english"], kSequences * 8);
}

TEST_F(StageEpochs, CountTheSequencesOfTheirOwnLength) {
  const std::string path = "path: " + folder_.file("english.txt") + ", validation_fraction: 0";
  const std::string data =
      path + ", stages: [{epochs: 0.5}, {epochs: 1, seq_length: 16, global_batch_size: 8}, {}]";
  train(recipe_text("epochs", data, "max_steps: 20"));
  // Half of 111 sequences in steps of 12; (899 / 16 - 1) = 55 sequences in steps of 8.
  EXPECT_NE(folder_.read("epochs/recipe.yaml")
                .find("[{steps: 5}, {steps: 7, seq_length: 16, global_batch_size: 8}, {}]"),
            std::string::npos)
      << folder_.read("epochs/recipe.yaml");
}

TEST_F(StageEpochs, ResumeOnOtherRanksAtAnyStep) {
  const std::string data =
      sources() + ", stages: [{epochs: 0.3, epochs_of: code}, {weights: [1, 3]}]";
  train(recipe_text("whole", data, "max_steps: 12"));
  for (const int step : {1, 5, 9, 12}) {
    train(recipe_text("cut", data, fmt::format("max_steps: {}", step)), 1 + step % 3);
  }
  EXPECT_EQ(steps_of("cut"), steps_of("whole"));
  EXPECT_EQ(digests("cut", 12), digests("whole", 12));
}

TEST_F(StageEpochs, AreRefusedWithoutASourceToCount) {
  const auto error = [&](const std::string& data) {
    return refusal<UsageError>(recipe_text("run", data, "max_steps: 20"));
  };
  EXPECT_NE(error(sources() + stage("epochs: 1"))
                .find("data.stages[0].epochs_of is \"\"; expected the name of a source: english or "
                      "code."),
            std::string::npos);
  EXPECT_NE(error(sources() + stage("epochs: 1, epochs_of: english, steps: 3"))
                .find("data.stages[0] has more than one of steps, tokens and epochs. Keep one."),
            std::string::npos);
  EXPECT_NE(error(sources() + stage("epochs_of: english, steps: 3"))
                .find("data.stages[0] has epochs_of, but no epochs."),
            std::string::npos);
  EXPECT_EQ(error(sources() + stage("epochs: 1, epochs_of: code, weights: [1, 0]")),
            "data.stages[0] counts epochs of \"code\", but the source's weight in it is 0.");
}

}  // namespace
}  // namespace sherd::testing
