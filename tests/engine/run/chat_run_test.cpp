// Whole runs on conversations: what is shown of the data, and a run that is cut in the middle of an epoch.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "engine/inference/chat.h"
#include "engine/inference/export.h"
#include "engine/launch/device.h"
#include "engine/launch/stop_signals.h"
#include "engine/run/run.h"
#include "engine/run/show_data.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

class ChatRun : public ::testing::Test {
 protected:
  ChatRun() {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    folder_.write("tokenizer/chat_template.jinja",
                  "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}<|end|>\n{% endfor %}"
                  "{% if add_generation_prompt %}[assistant]\n{% endif %}");
  }

  void write_conversations(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      const nlohmann::json line = {{"instruction", std::string(1 + i * 7 % 30, 'q')},
                                   {"output", "a" + std::to_string(i)}};
      lines += line.dump() + "\n";
    }
    folder_.write("chat.jsonl", lines);
  }

  std::string data() const { return "path: " + folder_.file("chat.jsonl") + ", format: chat"; }
  // Half of the sequences are of a text whose documents are joined.
  std::string mixed_data() const {
    return fmt::format(
        "format: text, documents: joined, validation_fraction: 0.2, sources: [{{path: {}, format: "
        "chat}}, {{path: {}}}]",
        folder_.file("chat.jsonl"), folder_.file("text.txt"));
  }

  engine::ResolvedRecipe recipe(const std::string& output, int ranks, int max_steps,
                                const std::string& data) const {
    std::ostringstream text;
    text << "run: {output_dir: " << folder_.file(output) << "}\n"
         << "model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 260, "
            "dropout: 0.1}\n"
         << "data: {" << data << ", tokenizer: " << folder_.file("tokenizer") << "}\n"
         << "training: {seq_length: 96, global_batch_size: 4, micro_batch_size: 1, max_steps: "
         << max_steps << "}\n"
         << "zero_optimization: {stage: 3}\n"
         << "lr_scheduler: {decay_steps: 12}\n"
         << "checkpoint: {interval: 4}\n";
    return engine::resolve_recipe(
        {.path = "mine.yaml", .text = text.str(), .sets = {}, .ranks = ranks});
  }

  void train(const std::string& output, int ranks, int max_steps,
             const std::string& data = "") const {
    ::testing::internal::CaptureStdout();
    engine::train(recipe(output, ranks, max_steps, data.empty() ? this->data() : data),
                  engine::cpu_machine());
    ::testing::internal::GetCapturedStdout();
  }

  /// For every step, what was computed.
  std::vector<std::string> steps_of(const std::string& output) const {
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    std::vector<std::string> steps;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("loss")) continue;
      steps.push_back(
          nlohmann::json{json["step"], json["loss"], json["grad_norm"], json["loss_tokens"]}
              .dump());
    }
    return steps;
  }

  test::TempFolder folder_;
};

TEST_F(ChatRun, GoesOnInTheMiddleOfAnEpochOnAnotherNumberOfRanksWithTheSameBits) {
  write_conversations(60);
  train("whole", 1, 12);
  train("cut", 4, 4);
  train("cut", 2, 8);
  train("cut", 1, 12);
  ASSERT_EQ(steps_of("whole").size(), 12u);
  EXPECT_EQ(steps_of("cut"), steps_of("whole"));
}

// A program that serves the model reads there where an answer ends.
TEST_F(ChatRun, IsExportedWithTheEndTokenOfItsAnswers) {
  write_conversations(60);
  nlohmann::json tokenizer = test::small_tokenizer();
  tokenizer["added_tokens"].push_back(
      {{"id", 259}, {"content", "<|text|>"}, {"special", true}, {"normalized", false}});
  folder_.write("tokenizer/tokenizer.json", tokenizer.dump());
  std::string text = folder_.read("tokenizer/chat_template.jinja");
  std::filesystem::remove(folder_.file("tokenizer/chat_template.jinja"));
  for (const bool uses_token : {false, true}) {
    if (uses_token) text = "{# eos_token #}" + text;
    const nlohmann::json config = {{"eos_token", "<|text|>"}, {"chat_template", text}};
    folder_.write("tokenizer/tokenizer_config.json", config.dump());
    const std::string run = uses_token ? "uses" : "plain", to = run + ".exported";
    train(run, 1, 4);
    engine::export_checkpoint(
        {folder_.file(run + "/checkpoints/step-0000000004"), folder_.file(to), DType::kF32});
    const auto exported = nlohmann::json::parse(folder_.read(to + "/tokenizer_config.json"));
    EXPECT_EQ(exported.at("eos_token"), uses_token ? "<|text|>" : "<|end|>");
    EXPECT_EQ(exported.at("chat_template"), text);
  }
}

TEST_F(ChatRun, MixesConversationsWithJoinedText) {
  write_conversations(60);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i % 23);
  folder_.write("text.txt", text);
  train("whole", 1, 12, mixed_data());
  train("cut", 4, 4, mixed_data());
  train("cut", 2, 8, mixed_data());
  train("cut", 1, 12, mixed_data());
  ASSERT_EQ(steps_of("whole").size(), 12u);
  EXPECT_EQ(steps_of("cut"), steps_of("whole"));
  const std::string said = engine::shown_data(recipe("whole", 1, 12, mixed_data()), {.samples = 4});
  EXPECT_NE(said.find("of chat: "), std::string::npos) << said;
  EXPECT_NE(said.find(", of text: 96 tokens, 100.0 % full, 96 with a loss"), std::string::npos)
      << said;
  EXPECT_NE(folder_.read("whole/metrics.jsonl").find("\"val_loss/text\":"), std::string::npos);
}

TEST_F(ChatRun, ShowsSequencesAndWhatIsTrainedOnInThem) {
  folder_.write("chat.jsonl", R"({"instruction": "q", "output": "r s"})"
                              "\n");
  engine::ResolvedRecipe resolved = recipe("shown", 1, 1, data());
  engine::Recipe& values = resolved.values;
  values.data.validation_fraction = 0.0;
  const std::string shown = engine::shown_data(resolved, {.samples = 1});
  EXPECT_NE(shown.find("sequence 1 of step 1: 27 tokens, 28.1 % full, 5 with a loss\n"
                       "[user]\nq<|end|>\n[assistant]\n«r s<|end|>\n»\n"),
            std::string::npos)
      << shown;
  const std::string coloured = engine::shown_data(resolved, {.samples = 1, .colour = true});
  EXPECT_NE(coloured.find("\x1b[32mr s<|end|>\n\x1b[0m"), std::string::npos) << coloured;
  values.parallelism.data_parallel_replicate_degree = 2;
  values.training.gradient_accumulation_steps /= 2;
  std::string on_two = engine::shown_data(resolved, {.samples = 1});
  const std::size_t balance = on_two.find("attention: steps wait for 1.000 times");
  ASSERT_NE(balance, std::string::npos) << on_two;
  on_two.erase(balance, on_two.find('\n', balance) + 1 - balance);
  EXPECT_EQ(on_two, shown) << "whichever ranks have them";
}

// It learns two answers by heart, then gives them; what a user spells of the template stays text.
TEST_F(ChatRun, AModelThatLearntConversationsAnswersInTheirForm) {
  folder_.write("chat.jsonl", R"({"instruction": "one", "output": "red"})"
                              "\n"
                              R"({"instruction": "two", "output": "blue"})"
                              "\n");
  const std::string text =
      "run: {output_dir: " + folder_.file("run") +
      "}\nmodel: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 259}\n"
      "data: {path: " +
      folder_.file("chat.jsonl") + ", format: chat, validation_fraction: 0, " +
      "tokenizer: " + folder_.file("tokenizer") +
      "}\ntraining: {seq_length: 96, global_batch_size: 2, micro_batch_size: 1, max_steps: 60}\n"
      "optimizer: {lr: 0.01}\ncheckpoint: {interval: 60}\n";
  ::testing::internal::CaptureStdout();
  engine::train(engine::resolve_recipe({.path = "mine.yaml", .text = text, .sets = {}, .ranks = 1}),
                engine::cpu_machine());
  ::testing::internal::GetCapturedStdout();

  std::vector<std::string> said = {"two", "one"}, answers;
  std::string shown;
  engine::ChatRequest request;
  request.model = {folder_.file("run/checkpoints/step-0000000060"), {}, 1};
  request.options.sampling = {.num_tokens = 20, .temperature = 0.0};
  request.next_message = [&]() -> std::optional<std::string> {
    if (said.empty()) return std::nullopt;
    const std::string next = said.front();
    said.erase(said.begin());
    return next;
  };
  request.on_text = [&](std::string_view piece) { shown += piece; };
  request.on_answer = [&](const engine::GeneratedText* answer) {
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->end, engine::GeneratedText::End::kEndToken);
    answers.push_back(answer->text);
  };
  engine::chat(request);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0], "blue");
  EXPECT_EQ(shown, answers[0] + answers[1]) << "pieces as they come are the whole";

  said = {"two", "one"};
  int stopped = 0;
  request.on_text = [&](std::string_view) {
    if (said.size() == 1) std::raise(SIGINT);  // in the first answer
  };
  request.on_answer = [&](const engine::GeneratedText* answer) { stopped += answer == nullptr; };
  engine::chat(request);
  EXPECT_TRUE(said.empty()) << "Ctrl-C ends an answer, not the conversation";
  EXPECT_EQ(stopped, 1);
  engine::install_stop_handlers();  // clears an earlier request to stop

  request.options.sampling.num_tokens = 90;
  said = {std::string(20, 'q')};
  EXPECT_NE(
      test::error_text<UsageError>([&] { engine::chat(request); }).find("more than the model's 96"),
      std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
