// Examples of two documents: both are neighbours in one row and in one split.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "engine/data/batcher.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using nlohmann::json;

class ExamplesTest : public testing::Test {
 protected:
  ExamplesTest() {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    std::string pairs, judged;
    for (std::size_t i = 0; i < 21; ++i) {
      const std::string prompt(1 + i % 3, 'q'), chosen(1 + i % 5, 'a'), rejected(1 + i % 4, 'b');
      pairs += json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump() + "\n";
      judged +=
          json{{"prompt", prompt}, {"completion", chosen}, {"label", i % 3 == 0}}.dump() + "\n";
    }
    folder_.write("pairs.jsonl", pairs);
    folder_.write("judged.jsonl", judged);
  }
  std::shared_ptr<const Dataset> open(const std::string& name, ExampleKind kind,
                                      double held_out = 0) const {
    DataOptions options{.path = folder_.file(name),
                        .format = Format::kChat,
                        .validation_fraction = held_out,
                        .vocab_size = 259,
                        .seq_length = 20,
                        .tokenizer = folder_.file("tokenizer"),
                        .separate_documents = true};
    options.chat.train_on = TrainOn::kCompletion;
    options.chat.examples = kind;
    return open_dataset(options);
  }
  test::TempFolder folder_;
};

TEST_F(ExamplesTest, ARowHasWholeExamplesAndAnEpochHasEachOnce) {
  const Batcher batcher(open("pairs.jsonl", ExampleKind::kPair),
                        {.seq_length = 20, .micro_batch_size = 2, .seed = 3});
  EXPECT_EQ(batcher.num_documents(), 42);
  std::set<std::int64_t> seen;
  for (std::int64_t row = 0; row < batcher.num_windows(); ++row) {
    const auto documents = batcher.documents_of_row(row / 2, row % 2);
    ASSERT_EQ(documents.size() % 2, 0U);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      EXPECT_EQ(documents[i].first, first);
      first += documents[i].count;
      EXPECT_EQ(documents[i].number % 2, static_cast<std::int64_t>(i % 2));
      if (i % 2 == 1) {
        EXPECT_EQ(documents[i].number, documents[i - 1].number + 1);
      }
      seen.insert(documents[i].number);
    }
    EXPECT_LE(first, 20);
  }
  EXPECT_EQ(seen.size(), 42U);
}

TEST_F(ExamplesTest, AStepsExamplesAreThoseOfItsRows) {
  const Batcher batcher(open("pairs.jsonl", ExampleKind::kPair),
                        {.seq_length = 20, .micro_batch_size = 2, .num_micro_steps = 2, .seed = 3});
  for (std::int64_t step = 0; step < 5; ++step) {
    std::int64_t documents = 0;
    for (std::int64_t row = 0; row < 4; ++row) {
      documents += std::ssize(batcher.documents_of_row(step, row));
    }
    EXPECT_EQ(batcher.num_examples(step), documents / 2);
  }
}

TEST_F(ExamplesTest, AnExampleIsHeldOutAsAWhole) {
  const auto dataset = open("pairs.jsonl", ExampleKind::kPair, 0.2);
  EXPECT_EQ(dataset->parts(Split::kValidation).size(), 10U);
  EXPECT_EQ(dataset->parts(Split::kTrain).size(), 32U);
  for (const Split split : {Split::kTrain, Split::kValidation}) {
    const auto& parts = dataset->parts(split);
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      EXPECT_EQ(parts[i].first + parts[i].count, parts[i + 1].first) << "neighbours in the file";
    }
  }
}

TEST_F(ExamplesTest, RowsOfTheReferenceHaveEveryDocumentOfBothSplitsOnce) {
  const Batcher batcher(open("judged.jsonl", ExampleKind::kLabelled, 0.2),
                        {.seq_length = 20, .micro_batch_size = 2, .seed = 3});
  std::set<std::int64_t> seen;
  std::int64_t wanted = 0;
  for (std::int64_t row = 0; row < batcher.num_example_rows(); ++row) {
    for (const RowDocument& document : batcher.documents_of_example_row(row)) {
      EXPECT_TRUE(seen.insert(document.number).second);
      wanted += document.number % 2 == 0 && document.is_wanted;
    }
  }
  EXPECT_EQ(std::ssize(seen), batcher.num_documents());
  EXPECT_EQ(*seen.rbegin(), batcher.num_documents() - 1);
  EXPECT_EQ(wanted, 7);
  std::set<std::int64_t> validated;
  for (std::int64_t window = 0; window < batcher.num_validation_windows(); ++window) {
    for (const RowDocument& document : batcher.documents_of_window(window)) {
      validated.insert(document.number);
    }
  }
  EXPECT_EQ(std::ssize(validated), 10);
  EXPECT_GE(*validated.begin(), 32) << "after those of training";
}

// A judged answer is crossed with the nearest earlier one that is fit and short enough.
TEST_F(ExamplesTest, AnUnfitJudgementSpoilsNoOther) {
  std::string rows;
  for (const char* answer : {"a", "bb", "ccc"}) {
    rows += json{{"prompt", "q"}, {"completion", answer}, {"label", true}}.dump() + "\n";
  }
  rows +=
      json{{"prompt", "q"}, {"completion", std::string(30, 'd')}, {"label", true}}.dump() + "\n";
  rows += json{{"prompt", {{{"role", "user"}, {"content", "q"}}}},
               {"completion", {{{"role", "assistant"}, {"content", 5}}}},
               {"label", true}}
              .dump() +
          "\n";
  folder_.write("unfit.jsonl", rows);
  const auto dataset = open("unfit.jsonl", ExampleKind::kLabelled);
  EXPECT_EQ(dataset->parts(Split::kTrain).size(), 6U);
  EXPECT_EQ(dataset->chat_counts().num_dropped(), 2);
}

// Its template refuses the answers of all the rows that are tried, since roles would not alternate.
TEST_F(ExamplesTest, AJudgementThatFitsNoOtherAnswerIsCrossedWithItsOwn) {
  folder_.write("tokenizer/chat_template.jinja",
                "{% for m in messages %}"
                "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                "{{ raise_exception('roles must alternate') }}{% endif %}"
                "{{ m.content }}{% endfor %}");
  const json user{{"role", "user"}, {"content", "q"}},
      assistant{{"role", "assistant"}, {"content", "a"}};
  std::string rows;
  for (int i = 0; i < 20; ++i) {
    rows += json{{"prompt", {user, assistant}}, {"completion", {user, assistant}}, {"label", true}}
                .dump() +
            "\n";
  }
  rows += json{{"prompt", {user}}, {"completion", {assistant}}, {"label", false}}.dump() + "\n";
  folder_.write("strict.jsonl", rows);
  const auto dataset = open("strict.jsonl", ExampleKind::kLabelled);
  const auto& parts = dataset->parts(Split::kTrain);
  ASSERT_EQ(parts.size(), 42U);
  EXPECT_EQ(parts[40].count, parts[41].count);
  EXPECT_FALSE(parts[40].is_wanted);
}

}  // namespace
}  // namespace sherd::data
