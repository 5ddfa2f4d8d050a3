// Whole runs on conversations: what is shown of the data, and a run that is cut in the middle of an epoch.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/launch/device.h"
#include "engine/run/run.h"
#include "engine/run/show_data.h"
#include "tests/support/small_tokenizer.h"
#include "tests/support/temp_folder.h"

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

  engine::ResolvedRecipe recipe(const std::string& output, int ranks, int max_steps) const {
    std::ostringstream text;
    text << "run: {output_dir: " << folder_.file(output) << "}\n"
         << "model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 259, "
            "dropout: 0.1}\n"
         << "data: {path: " << folder_.file("chat.jsonl")
         << ", format: chat, tokenizer: " << folder_.file("tokenizer") << "}\n"
         << "training: {seq_length: 96, global_batch_size: 4, micro_batch_size: 1, max_steps: "
         << max_steps << "}\n"
         << "zero_optimization: {stage: 3}\n"
         << "lr_scheduler: {decay_steps: 12}\n"
         << "checkpoint: {interval: 4}\n";
    return engine::resolve_recipe(
        {.path = "mine.yaml", .text = text.str(), .sets = {}, .ranks = ranks});
  }

  void train(const std::string& output, int ranks, int max_steps) const {
    ::testing::internal::CaptureStdout();
    engine::train(recipe(output, ranks, max_steps), engine::cpu_machine());
    ::testing::internal::GetCapturedStdout();
  }

  /// Of every step: what was computed.
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

TEST_F(ChatRun, ShowsSequencesAndWhatIsTrainedOnInThem) {
  folder_.write("chat.jsonl", R"({"instruction": "q", "output": "r s"})"
                              "\n");
  engine::Recipe values = recipe("shown", 1, 1).values;
  values.data.validation_fraction = 0.0;
  const std::string shown = engine::shown_data(values, {.samples = 1});
  EXPECT_NE(shown.find("sequence 1 of step 1: 27 tokens, 28.1 % full, 5 with a loss\n"
                       "[user]\nq<|end|>\n[assistant]\n«r s<|end|>\n»\n"),
            std::string::npos)
      << shown;
  const std::string coloured = engine::shown_data(values, {.samples = 1, .colour = true});
  EXPECT_NE(coloured.find("\x1b[32mr s<|end|>\n\x1b[0m"), std::string::npos) << coloured;
  values.parallelism.data_parallel_replicate_degree = 2;
  values.training.gradient_accumulation_steps /= 2;
  EXPECT_EQ(engine::shown_data(values, {.samples = 1}), shown) << "whichever ranks have them";
}

}  // namespace
}  // namespace sherd::testing
