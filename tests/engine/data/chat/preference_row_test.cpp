// Rows of preferences, in the forms that other programs write.
#include "engine/data/chat/preference_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sherd::data {
namespace {

using nlohmann::json;

std::vector<json> pair_of(const json& row) {
  std::vector<json> answers;
  for (const std::string& answer : read_preference(row.dump(), ExampleKind::kPair).answers) {
    answers.push_back(json::parse(answer));
  }
  return answers;
}
std::string problem_of(const json& row, ExampleKind kind = ExampleKind::kPair) {
  try {
    read_preference(row.dump(), kind);
  } catch (const UnfitRow& unfit) {
    return unfit.what();
  }
  return "";
}
json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

TEST(PreferenceRow, TextsBecomeTwoRowsOfPromptAndCompletion) {
  const auto answers = pair_of({{"prompt", "a?"}, {"chosen", " b"}, {"rejected", " c"}});
  EXPECT_EQ(answers[0], (json{{"prompt", "a?"}, {"completion", " b"}}));
  EXPECT_EQ(answers[1], (json{{"prompt", "a?"}, {"completion", " c"}}));
}

TEST(PreferenceRow, OtherFieldsBelongToBothAnswers) {
  const auto answers =
      pair_of({{"prompt", "a"}, {"chosen", "b"}, {"rejected", "c"}, {"system", "be brief"}});
  EXPECT_EQ(answers[0]["system"], "be brief");
  EXPECT_EQ(answers[1]["system"], "be brief");
}

// TRL's implicit prompt.
TEST(PreferenceRow, WhatTwoConversationsBeginWithIsTheirPrompt) {
  const json row = {
      {"chosen", {message("user", "a?"), message("assistant", "b")}},
      {"rejected", {message("user", "a?"), message("assistant", "c"), message("user", "d")}}};
  const auto answers = pair_of(row);
  EXPECT_EQ(answers[0]["prompt"], json::array({message("user", "a?")}));
  EXPECT_EQ(answers[0]["completion"], json::array({message("assistant", "b")}));
  EXPECT_EQ(answers[1]["prompt"], answers[0]["prompt"]);
  EXPECT_EQ(answers[1]["completion"].size(), 2U);
}

// UltraFeedback's: the prompt is a text, and the first message of both answers.
TEST(PreferenceRow, ATextPromptThatTheAnswersRepeatIsTheirFirstMessage) {
  const auto answers = pair_of({{"prompt", "a?"},
                                {"chosen", {message("user", "a?"), message("assistant", "b")}},
                                {"rejected", {message("user", "a?"), message("assistant", "c")}}});
  EXPECT_EQ(answers[0]["prompt"], json::array({message("user", "a?")}));
  EXPECT_EQ(answers[1]["completion"], json::array({message("assistant", "c")}));
}

// UltraFeedback repeats the chosen answer; other sets have a judgement of the whole row.
TEST(PreferenceRow, OtherFormsInTheRowArentReadInstead) {
  const auto answers = pair_of({{"prompt", "a?"},
                                {"chosen", {message("user", "a?"), message("assistant", "b")}},
                                {"rejected", {message("user", "a?"), message("assistant", "c")}},
                                {"messages", {message("user", "a?"), message("assistant", "b")}},
                                {"label", true}});
  for (const auto& answer : answers) {
    EXPECT_FALSE(answer.contains("messages"));
    EXPECT_FALSE(answer.contains("label"));
  }
  EXPECT_EQ(answers[1]["completion"], json::array({message("assistant", "c")}));
}

TEST(PreferenceRow, OpenAisNamesAreRead) {
  const auto answers = pair_of({{"input", {{"messages", {message("user", "a?")}}}},
                                {"preferred_output", {message("assistant", "b")}},
                                {"non_preferred_output", {message("assistant", "c")}}});
  EXPECT_EQ(answers[0]["prompt"], json::array({message("user", "a?")}));
  EXPECT_EQ(answers[0]["completion"], json::array({message("assistant", "b")}));
  EXPECT_EQ(answers[1]["completion"], json::array({message("assistant", "c")}));
}

TEST(PreferenceRow, ProblemsAreNamed) {
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(problem_of({{"prompt", "a"}, {"chosen", "b"}}), "no \"rejected\"; it has \"chosen\"");
  contains(problem_of({{"prompt", "a"}, {"chosen", "b"}, {"rejected", "b"}}), "are equal");
  contains(problem_of({{"prompt", "a"}, {"chosen", ""}, {"rejected", "b"}}), "\"chosen\" is empty");
  contains(problem_of({{"prompt", "a"}, {"chosen", "b"}, {"rejected", 3}}),
           "\"rejected\" is neither");
  contains(problem_of({{"chosen", "b"}, {"rejected", "c"}}), "no \"prompt\"");
  const json ask = message("user", "a?"), other = message("user", "b?"),
             say = message("assistant", "b");
  contains(problem_of({{"chosen", {ask, say}}, {"rejected", {other, say}}}),
           "begin with different messages");
  contains(problem_of({{"chosen", {ask}}, {"rejected", {ask, say}}}), "\"chosen\" has no answer");
  contains(
      problem_of({{"prompt", {ask}}, {"chosen", {message("assistant", "")}}, {"rejected", {say}}}),
      "\"chosen\" has an empty message");
  contains(problem_of({{"prompt", "a"}, {"completion", "b"}, {"label", 1}}, ExampleKind::kLabelled),
           "\"label\" isn't true or false");
  EXPECT_THROW(read_preference("{\"prompt\": ", ExampleKind::kPair), UnfitRow);
  contains(problem_of({{"prompt", "a"}, {"chosen", nullptr}, {"rejected", "b"}}),
           "a \"chosen\" that is null");
  contains(problem_of({{"prompt", 5}, {"chosen", "a"}, {"rejected", "b"}}), "\"prompt\" and");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  try {
    read_preference("{\"prompt\": \"a\", \"chosen\": " + deep + "}", ExampleKind::kPair);
    ADD_FAILURE() << "deeply nested";
  } catch (const UnfitRow& unfit) {
    contains(unfit.what(), "nested more than 100 deep");
  }
}

TEST(PreferenceRow, AJudgedAnswerCanBeCrossedWithAnother) {
  const PreferenceRow one = read_preference(
      json{{"prompt", "a"}, {"completion", "b"}, {"label", true}}.dump(), ExampleKind::kLabelled);
  const PreferenceRow two = read_preference(
      json{{"prompt", "c"}, {"completion", "d"}, {"label", false}}.dump(), ExampleKind::kLabelled);
  EXPECT_TRUE(one.is_wanted);
  EXPECT_FALSE(two.is_wanted);
  EXPECT_EQ(json::parse(with_completion_of(one.answers[0], two.answers[0])),
            (json{{"prompt", "a"}, {"completion", "d"}}));
  const std::string messages =
      json{{"prompt", "c"}, {"completion", {message("assistant", "d")}}}.dump();
  EXPECT_EQ(with_completion_of(one.answers[0], messages), "");
}

}  // namespace
}  // namespace sherd::data
