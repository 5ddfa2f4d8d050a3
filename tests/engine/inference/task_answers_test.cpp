// Answers to questions with choices, as transformers gives them: tests/reference/huggingface/tasks.py.
#include <sstream>

#include "engine/inference/scoring.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

const json& answers() {
  static const json kCases = [] {
    std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/inference/tasks.json");
    return json::parse(file);
  }();
  return kCases;
}

class TaskAnswers : public Folder {
 protected:
  static std::string lines_of(const std::string& model) {
    std::string lines;
    for (const json& line : answers()[model]["lines"]) lines += line.get<std::string>() + "\n";
    return lines;
  }
  TrainedModelRequest request(const std::string& model, std::int64_t ranks = 1) {
    return {.checkpoint = write_model(model),
            .sets = {"data.format=bin", "data.validation_path=" + folder_.file("many.bin"),
                     "training.tasks=[{path: " + folder_.write("q.jsonl", lines_of(model)) + "}]"},
            .ranks = ranks};
  }
};

TEST_F(TaskAnswers, OfAnEvaluationAreThoseOfTransformers) {
  write_tokens();
  for (const char* model : {"llama", "gpt2"}) {
    for (const int ranks : {1, 3}) {
      const TextLoss result = evaluate_checkpoint(request(model, ranks));
      ASSERT_EQ(result.tasks.size(), 1u);
      const EvaluationResult::Task& task = result.tasks[0];
      EXPECT_EQ(task.name, "q");
      EXPECT_EQ(task.num_questions, 37);
      EXPECT_EQ(task.num_right, answers()[model]["right"]);
      EXPECT_EQ(task.num_right_by_bytes, answers()[model]["right_by_bytes"]);
      std::size_t i = 0;
      for (const json& question : answers()[model]["scores"]) {
        for (const json& score : question) {
          EXPECT_NEAR(task.scores.at(i++), score.get<double>(), 2e-5) << model;
        }
      }
      EXPECT_EQ(i, task.scores.size());
    }
  }
}

TEST_F(TaskAnswers, OfAScoredFileAreThoseOfTransformers) {
  std::istringstream lines(lines_of("llama"));
  std::vector<json> found;
  answer({.model = {.checkpoint = write_model("llama"), .sets = {"data.format=bin"}, .ranks = 1},
          .questions = &lines,
          .name = "q.jsonl",
          .on_answer = [&](const std::string& line) { found.push_back(json::parse(line)); }});
  ASSERT_EQ(found.size(), 38u);
  EXPECT_EQ(found[0]["sherd_task"], 1);
  int right = 0, right_by_bytes = 0;
  for (std::size_t i = 1; i < found.size(); ++i) {
    right += found[i]["right"].get<bool>();
    right_by_bytes += found[i]["right_by_bytes"].get<bool>();
    const json& scores = answers()["llama"]["scores"][i - 1];
    ASSERT_EQ(found[i]["log_likelihoods"].size(), scores.size());
    for (std::size_t choice = 0; choice < scores.size(); ++choice) {
      EXPECT_NEAR(found[i]["log_likelihoods"][choice].get<double>(), scores[choice].get<double>(),
                  2e-5);
    }
  }
  EXPECT_EQ(right, answers()["llama"]["right"]);
  EXPECT_EQ(right_by_bytes, answers()["llama"]["right_by_bytes"]);
}

}  // namespace
}  // namespace sherd::engine
