#include "engine/data/task.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

constexpr const char* kHeader = "{\"sherd_task\": 1, \"vocab_size\": 50}\n";
constexpr const char* kQuestion =
    "{\"context\": [1, 2, 3], \"choices\": [[4], [5, 6]], \"bytes\": [2, 7], \"answer\": 1}\n";

class TaskFiles : public ::testing::Test {
 protected:
  static TaskLimits limits() { return {.vocab_size = 64, .tokenizer_size = 50, .seq_length = 4}; }
  Task read(const std::string& text, const TaskLimits& of = limits()) {
    return read_task("small", folder_.write("small.jsonl", text), of);
  }
  // Without the path.
  std::string refusal(const std::string& text, const TaskLimits& of = limits()) {
    std::string error = test::error_text<DataError>([&] { read(text, of); });
    EXPECT_EQ(error.find('\n'), std::string::npos);
    const std::string path = folder_.file("small.jsonl");
    EXPECT_TRUE(error.starts_with(path)) << error;
    return error.substr(path.size());
  }
  static std::string question(const std::string& keys) { return kHeader + ("{" + keys + "}\n"); }

  test::TempFolder folder_;
};

TEST_F(TaskFiles, HaveAHeaderAndAQuestionPerLine) {
  const Task task = read(std::string(kHeader) + kQuestion + "\n" + kQuestion);
  ASSERT_EQ(task.questions.size(), 2u);
  const Question& question = task.questions[1];
  EXPECT_EQ(question.context, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(question.choices[1].tokens, (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(question.choices[1].bytes, 7);
  EXPECT_EQ(question.answer, 1u);
  EXPECT_EQ(task.num_choices(), 4);
  EXPECT_EQ(task.most_inputs(), 4) << "the last token is only predicted";
}

TEST_F(TaskFiles, OfAnotherTokenizerOrFormAreRefused) {
  const std::string form =
      ": isn't a file of questions: its first line isn't {\"sherd_task\": 1, \"vocab_size\": N}. "
      "recipes/lm_eval/task_file.py writes them.";
  EXPECT_EQ(refusal(""), form);
  EXPECT_EQ(refusal(kQuestion), form);
  EXPECT_EQ(refusal("text\n"), form);
  EXPECT_EQ(refusal("{\"sherd_task\": 2, \"vocab_size\": 50}\n"),
            ": is a file of questions of version 2, and this program knows 1.");
  EXPECT_EQ(refusal("{\"sherd_task\": 1, \"vocab_size\": 51}\n"),
            ": a tokenizer of 51 ids wrote it, and the run's has 50. Write it again with the run's "
            "tokenizer.");
  EXPECT_EQ(refusal(kHeader), ": has no questions.");
  EXPECT_NE(test::error_text<DataError>([&] {
              read_task("x", folder_.file("none"), limits());
            }).find("can't be opened"),
            std::string::npos);
}

TEST_F(TaskFiles, WithoutATokenizerOnlyNeedIdsOfTheModel) {
  TaskLimits any = limits();
  any.tokenizer_size.reset();
  EXPECT_EQ(read("{\"sherd_task\": 1, \"vocab_size\": 99}\n" + std::string(kQuestion), any)
                .questions.size(),
            1u);
}

TEST_F(TaskFiles, NameALineThatIsNoQuestion) {
  const auto with = [](const char* context, const char* choices, const char* bytes,
                       const char* answer) {
    return question(fmt::format("\"context\": {}, \"choices\": {}, \"bytes\": {}, \"answer\": {}",
                                context, choices, bytes, answer));
  };
  EXPECT_EQ(refusal(std::string(kHeader) + "[1]\n"), ":2: isn't a JSON object.");
  EXPECT_EQ(refusal(with("[]", "[[1], [2]]", "[1, 1]", "0")),
            ":2: \"context\" isn't a list of token ids.");
  EXPECT_EQ(refusal(with("[64]", "[[1], [2]]", "[1, 1]", "0")),
            ":2: \"context\" has 64, which isn't a token id from 0 to 63.");
  EXPECT_EQ(refusal(with("[1]", "[[1], [-2]]", "[1, 1]", "0")),
            ":2: choice 1 has -2, which isn't a token id from 0 to 63.");
  EXPECT_EQ(refusal(with("[1]", "[[1], []]", "[1, 1]", "0")),
            ":2: choice 1 isn't a list of token ids.");
  EXPECT_EQ(refusal(with("[1]", "[[1]]", "[1]", "0")),
            ":2: has 1 choices and bytes of 1; expected two or more, and bytes of each.");
  EXPECT_EQ(refusal(with("[1]", "[[1], [2]]", "[1]", "0")),
            ":2: has 2 choices and bytes of 1; expected two or more, and bytes of each.");
  EXPECT_EQ(refusal(with("[1]", "[[1], [2]]", "[1, 0]", "0")),
            ":2: \"bytes\" has 0, which isn't the length of a text.");
  EXPECT_EQ(refusal(with("[1]", "[[1], [2]]", "[1, 1]", "2")),
            ":2: \"answer\" isn't a choice from 0 to 1.");
  EXPECT_EQ(refusal(question("\"choices\": [[1], [2]]")),
            ":2: \"context\" isn't a list; a question has \"context\", \"choices\", \"bytes\" and "
            "\"answer\".");
}

TEST_F(TaskFiles, RefuseAQuestionThatIsLongerThanASequence) {
  TaskLimits shorter = limits();
  shorter.seq_length = 3;
  EXPECT_EQ(refusal(std::string(kHeader) + kQuestion, shorter),
            ":2: context and choice 1 have 5 tokens, and sequences of 3 have room for 4. Leave the "
            "question out, or raise training.seq_length.");
}

TEST(Verdicts, TakeTheFirstOfEqualScoresAndNoneThatIsntANumber) {
  Question question{.context = {1}, .choices = {{{2}, 2}, {{3}, 8}, {{4}, 1}}, .answer = 0};
  const auto right = [&](std::size_t answer, std::vector<double> scores) {
    question.answer = answer;
    const Verdict verdict = verdict_of(question, scores);
    return std::pair(verdict.right, verdict.right_by_bytes);
  };
  using Both = std::pair<bool, bool>;
  EXPECT_EQ(right(0, {-2, -4, -3}), Both(true, false));
  EXPECT_EQ(right(1, {-2, -4, -3}), Both(false, true));
  EXPECT_EQ(right(0, {-2, -8, -2}), Both(true, true)) << "of equal ones the first";
  EXPECT_EQ(right(2, {-2, -8, -1}), Both(true, false));
  const double nan = std::nan("");
  EXPECT_EQ(right(0, {nan, -8, -9}), Both(false, false));
  EXPECT_EQ(right(1, {nan, -8, -9}), Both(true, true));
  EXPECT_EQ(right(0, {nan, nan, nan}), Both(false, false));
}

}  // namespace
}  // namespace sherd::data
