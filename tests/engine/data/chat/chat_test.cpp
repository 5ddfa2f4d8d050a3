// Conversations become tokens: which are trained on, what users may write, what doesn't fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/data/batcher.h"
#include "engine/data/chat/chat_format.h"
#include "engine/data/dataset.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

constexpr std::int32_t kEnd = 258;  // "<|end|>"

const std::string kTurns =
    "{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}";
// Earlier answers lose the text before "</t>".
const std::string kThinking =
    "{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</t>')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}";

const std::string kTwoAnswers =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": " a "},)"
    R"( {"role": "assistant", "content": "b\n"}, {"role": "user", "content": "c"},)"
    R"( {"role": "assistant", "content": "d e"}]})";

class Chat : public testing::Test {
 protected:
  Chat() { use(kTurns); }

  void use(const std::string& source) {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    folder_.write("tokenizer/chat_template.jinja", source);
    tokenizer_ = tokenizer::Tokenizer::open(folder_.file("tokenizer"));
  }
  ChatFormat format(TrainOn train_on = TrainOn::kAssistant,
                    RewrittenHistory rewritten = RewrittenHistory::kTrainLast) const {
    return {folder_.file("tokenizer"), tokenizer_, {.train_on = train_on, .rewritten = rewritten}};
  }
  EncodedConversation encoded(const std::string& line, const ChatFormat& format) const {
    tokenizer::Encoder encoder(tokenizer_);
    return format.encode(read_conversation(line), encoder);
  }
  /// The text, with what is trained on in angles.
  std::string marked(const std::string& line, TrainOn train_on = TrainOn::kAssistant) const {
    const EncodedConversation conversation = encoded(line, format(train_on));
    std::string text;
    bool inside = false;
    for (std::size_t i = 0; i <= conversation.ids.size(); ++i) {
      const bool now = i < conversation.ids.size() && conversation.trained[i] != 0;
      if (now != inside) text += now ? "«" : "»";
      inside = now;
      if (i < conversation.ids.size()) {
        text += tokenizer_->decode(std::array{conversation.ids[i]}, false);
      }
    }
    return text;
  }
  std::string error(const std::string& line) const {
    return test::error_text<DataError>([&] { encoded(line, format()); });
  }
  DataOptions options(const std::string& lines, Unfit unfit = Unfit::kDrop,
                      std::int64_t seq_length = 64) const {
    DataOptions options{.path = folder_.write("chat.jsonl", lines),
                        .format = Format::kChat,
                        .validation_fraction = 0,
                        .vocab_size = 259,
                        .seq_length = seq_length,
                        .tokenizer = folder_.file("tokenizer"),
                        .separate_documents = true};
    options.chat.unfit = unfit;
    return options;
  }

  test::TempFolder folder_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

TEST_F(Chat, TrainsOnEachAnswerAndOnWhatEndsItsTurn) {
  EXPECT_EQ(marked(kTwoAnswers),
            "[system]\ns<|end|>\n[user]\na<|end|>\n[assistant]\n«b<|end|>\n»[user]\nc<|end|>\n"
            "[assistant]\n«d e<|end|>\n»");
}

TEST_F(Chat, TrainsOnTheLastAnswerTheCompletionOrAllIfAsked) {
  const std::string before =
      "[system]\ns<|end|>\n[user]\na<|end|>\n[assistant]\nb<|end|>\n[user]\nc<|end|>\n[assistant]"
      "\n";
  EXPECT_EQ(marked(kTwoAnswers, TrainOn::kLast), before + "«d e<|end|>\n»");
  EXPECT_EQ(marked(kTwoAnswers, TrainOn::kCompletion), before + "«d e<|end|>\n»");
  EXPECT_EQ(marked(kTwoAnswers, TrainOn::kAll), "«" + before + "d e<|end|>\n»");
}

TEST_F(Chat, ReadsTheUsualFormsAsTheSameConversation) {
  const std::string expected = "[user]\nq<|end|>\n[assistant]\n«r<|end|>\n»";
  EXPECT_EQ(
      marked(
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]})"),
      expected);
  EXPECT_EQ(
      marked(
          R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]})"),
      expected);
  EXPECT_EQ(marked(R"({"instruction": "q", "input": "", "output": "r"})"), expected);
  EXPECT_EQ(
      marked(
          R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "r"}]})",
          TrainOn::kCompletion),
      expected);
  EXPECT_EQ(marked(R"({"instruction": "q", "input": "x", "output": "r"})"),
            "[user]\nq\n\nx<|end|>\n[assistant]\n«r<|end|>\n»");
  EXPECT_EQ(marked(R"({"prompt": "q: ", "completion": "r"})"), "q: «r<|end|>»");
}

TEST_F(Chat, TakesWhatTheTemplateItselfSaysIsGenerated) {
  use("{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}"
      " {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}");
  EXPECT_EQ(marked(kTwoAnswers),
            "[system]s<|end|>[user] a <|end|>[assistant]« b\n»<|end|>[user]c<|end|>[assistant]« d "
            "e»<|end|>");
  EXPECT_EQ(marked(kTwoAnswers, TrainOn::kLast),
            "[system]s<|end|>[user] a <|end|>[assistant] b\n<|end|>[user]c<|end|>[assistant]« d "
            "e»<|end|>");
}

TEST_F(Chat, OfGeneratedTextACompletionIsAllThatFollowsThePrompt) {
  use("{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}"
      " {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}");
  EXPECT_EQ(marked(R"({"prompt": [{"role": "user", "content": "a"},)"
                   R"( {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],)"
                   R"( "completion": [{"role": "assistant", "content": "d"},)"
                   R"( {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}]})",
                   TrainOn::kCompletion),
            "[user]a<|end|>[assistant] b<|end|>[user]c<|end|>[assistant]« d»<|end|>[user]e<|end|>"
            "[assistant]« f»<|end|>");
}

TEST_F(Chat, WhereNothingEndsATurnTheTokenThatBeginsTheNextOneIsTrainedOn) {
  use("{% for m in messages %}<|end|>{{ m.role }}\n{{ m.content | trim }}{% endfor %}"
      "{% if add_generation_prompt %}<|end|>assistant\n{% endif %}");
  EXPECT_EQ(
      marked(kTwoAnswers),
      "<|end|>system\ns<|end|>user\na<|end|>assistant\n«b<|end|>»user\nc<|end|>assistant\n«d e»");
}

// The property that spans rest on, seen from outside: the prompt for an answer, as a chat shows it, has
// the tokens that come before the answer in training.
TEST_F(Chat, AnswersFollowTheTokensThatTheirPromptHas) {
  const EncodedConversation whole = encoded(kTwoAnswers, format(TrainOn::kLast));
  std::vector<std::int32_t> prompt;
  tokenizer::Encoder encoder(tokenizer_);
  encoder.encode(
      "[system]\ns<|end|>\n[user]\na<|end|>\n[assistant]\nb<|end|>\n[user]\nc<|end|>\n[assistant]"
      "\n",
      tokenizer::SpecialTokens::kAsTokens, prompt);
  const auto first =
      std::find(whole.trained.begin(), whole.trained.end(), 1) - whole.trained.begin();
  EXPECT_EQ(std::vector<std::int32_t>(whole.ids.begin(), whole.ids.begin() + first), prompt);
}

TEST_F(Chat, SpecialTokensSpelledInAMessageStayTextAndChangeNothingElse) {
  std::uint64_t state = 7;
  const auto below = [&](std::uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  const std::string pieces[] = {"<|end|>",       "<|", "end|>", "<|end|", "|>",
                                "[assistant]\n", "x",  " ",     "the"};
  const auto line = [](const std::string& content) {
    return nlohmann::json{{"messages",
                           {{{"role", "user"}, {"content", content}},
                            {{"role", "assistant"}, {"content", content}},
                            {{"role", "user"}, {"content", "q"}},
                            {{"role", "assistant"}, {"content", "r"}}}}}
        .dump();
  };
  const ChatFormat assistant = format();
  const auto plain = encoded(line("x"), assistant);
  const std::int64_t ends = std::count(plain.ids.begin(), plain.ids.end(), kEnd);
  ASSERT_EQ(ends, 4);
  const auto turn_after = [](const EncodedConversation& c, std::int64_t skipped) {
    auto at = c.ids.begin();
    for (; skipped > 0; --skipped) at = std::find(at, c.ids.end(), kEnd) + 1;
    return std::vector<std::int32_t>(at, c.ids.end());
  };
  for (int i = 0; i < 1000; ++i) {
    std::string content = "x";
    for (std::uint64_t n = 1 + below(5); n > 0; --n) content += pieces[below(std::size(pieces))];
    content += "x";
    const auto hostile = encoded(line(content), assistant);
    ASSERT_EQ(std::count(hostile.ids.begin(), hostile.ids.end(), kEnd), ends) << content;
    ASSERT_EQ(turn_after(hostile, 2), turn_after(plain, 2)) << content;
    ASSERT_EQ(tokenizer_->decode(hostile.ids, false),
              "[user]\n" + content + "<|end|>\n[assistant]\n" + content +
                  "<|end|>\n[user]\nq<|end|>\n[assistant]\nr<|end|>\n");
  }
}

TEST_F(Chat, ATemplateThatRewritesHistoryTrainsTheLastAnswerOrIsAnError) {
  use(kThinking);
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "w</t>b"},)"
      R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": "v</t>d"}]})";
  EXPECT_EQ(
      marked(line),
      "[user]\na<|end|>\n[assistant]\nb<|end|>\n[user]\nc<|end|>\n[assistant]\n«v</t>d<|end|>\n»");
  EXPECT_TRUE(encoded(line, format()).was_rewritten);
  const std::string problem = test::error_text<DataError>(
      [&] { encoded(line, format(TrainOn::kAssistant, RewrittenHistory::kError)); });
  EXPECT_NE(problem.find("rewrites message 2"), std::string::npos) << problem;
}

TEST_F(Chat, AnswersThatTheTemplateShowsInAnotherOrderAreRefused) {
  use("{{ messages[-1].content }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
  const std::string line =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},)"
      R"( {"role": "user", "content": "v"}, {"role": "assistant", "content": "a"}]})";
  EXPECT_EQ(error(line), "the template shows message 4 before the end of an earlier answer");
}

TEST_F(Chat, TheTokenThatStopsAnAnswerMayBeginTheNext) {
  use("{% for m in messages %}<|end|>{{ m.content }}{% endfor %}");
  const std::string line =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},)"
      R"( {"role": "assistant", "content": "b"}]})";
  EXPECT_EQ(marked(line), "<|end|>u«<|end|>a<|end|>b»");
}

TEST_F(Chat, TheEndOfAnAnswerIsASpecialTokenAfterItsText) {
  const auto end = [&] {
    tokenizer_ = tokenizer::Tokenizer::open(folder_.file("tokenizer"), {"<|say|>"});
    tokenizer::Encoder encoder(tokenizer_);
    return format().end_of_answer(encoder);
  };
  EXPECT_EQ(end(), kEnd);
  use("{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' %}<|say|>{% endif %}"
      "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}");
  EXPECT_EQ(end(), kEnd);
  use("{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' %}<|say|>{% endif %}"
      "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}");
  EXPECT_EQ(end(), std::nullopt);
}

TEST_F(Chat, APromptHasTheToolCallsThatItsMessagesHave) {
  tokenizer::Encoder encoder(tokenizer_);
  const Conversation calls = read_conversation(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",)"
      R"( "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},)"
      R"( {"role": "user", "content": "c"}]})");
  EXPECT_EQ(test::error_text<DataError>([&] { format().prompt_ids(calls, encoder); }),
            "has tool calls, which the template doesn't show");
}

TEST_F(Chat, LinesThatAreNoConversationSayWhy) {
  EXPECT_NE(error("{\"messages\": [").find("not JSON"), std::string::npos);
  // A template would show it with other digits; a field that holds a hash isn't shown.
  const std::string number = "15000000000000000000";
  EXPECT_NE(error(R"({"messages": [{"role": "user", "content": )" + number + "}]}")
                .find("a whole number of more than 63 bits"),
            std::string::npos);
  EXPECT_EQ(
      error(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "hash": )" +
          number + "}")
          .find("63 bits"),
      std::string::npos);
  EXPECT_EQ(error("[]"), "isn't an object");
  EXPECT_NE(error(R"({"txt": "x"})").find("has none of"), std::string::npos);
  EXPECT_EQ(error(R"({"messages": 3})"), "\"messages\" isn't a list");
  EXPECT_EQ(error(R"({"messages": [{"content": "x"}]})"),
            "message 1 has no \"role\" that is a text");
  EXPECT_EQ(error(R"({"messages": [{"role": "assistant", "content": "x"}]})"),
            "message 1 is an answer, but nothing was asked before");
  EXPECT_EQ(
      error(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]})"),
      "message 2 is a system message, which must come first");
  EXPECT_EQ(
      error(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]})"),
      "message 2 is a tool's result, but nothing called one");
  EXPECT_EQ(error(R"({"conversations": [{"from": "alien", "value": "x"}]})"),
            "message 1 is from \"alien\", which isn't a known role");
}

TEST_F(Chat, ABadLineIsNamedWithItsFile) {
  const std::string problem = test::error_text<DataError>(
      [&] { open_dataset(options(kTwoAnswers + "\n\n{\"messages\": \n", Unfit::kError)); });
  EXPECT_NE(problem.find("chat.jsonl:3: not JSON"), std::string::npos) << problem;
}

TEST_F(Chat, ConversationsThatDoNotFitAreDroppedCutOrAnErrorAndCounted) {
  const std::string fits = R"({"instruction": "q", "output": "r"})"
                           "\n";
  const std::string is_long =
      R"({"instruction": "q", "output": ")" + std::string(80, 'x') + "\"}\n";
  const std::string empty = R"({"messages": [{"role": "user", "content": "q"}]})"
                            "\n"
                            R"({"messages": []})"
                            "\n";
  const auto dropped = open_dataset(options(fits + is_long + empty));
  EXPECT_EQ(dropped->parts(Split::kTrain).size(), 1u);
  EXPECT_NE(
      dropped->summary().find("\n4 conversations\n2 dropped: no answer to train on (first " +
                              folder_.file("chat.jsonl") +
                              ":3: no message has the role \"assistant\"; there are \"user\")\n"
                              "1 dropped: longer than a sequence (first "),
      std::string::npos)
      << dropped->summary();
  const auto cut = open_dataset(options(fits + is_long + empty, Unfit::kCut));
  ASSERT_EQ(cut->parts(Split::kTrain).size(), 2u);
  EXPECT_EQ(cut->parts(Split::kTrain)[1].count, 64);
  EXPECT_NE(test::error_text<DataError>([&] {
              open_dataset(options(fits + is_long, Unfit::kError));
            }).find("chat.jsonl:2: the conversation has"),
            std::string::npos);
  EXPECT_NE(test::error_text<DataError>([&] {
              open_dataset(options(fits + empty, Unfit::kError));
            }).find("chat.jsonl:2: no message has the role"),
            std::string::npos);
}

// Two answers of 3 and 5 tokens: "b", "<|end|>", "\n"; "d", " ", "e", "<|end|>", "\n".
TEST_F(Chat, RowsHaveTargetsWhereAnswersAreAndNowhereElse) {
  const auto data = open_dataset(options(kTwoAnswers + "\n"));
  const Batcher batcher(data, {.seq_length = 64, .micro_batch_size = 2, .seed = 1});
  EXPECT_EQ(batcher.num_windows(), 1);
  EXPECT_EQ(batcher.num_targets(0), 2 * (3 + 5)) << "the one row twice";
}

TEST_F(Chat, AFolderWithoutATemplateIsAnErrorThatNamesIt) {
  std::filesystem::remove(folder_.file("tokenizer/chat_template.jinja"));
  EXPECT_NE(error(kTwoAnswers).find("has no chat_template.jinja"), std::string::npos);
  folder_.write("tokenizer/tokenizer_config.json",
                nlohmann::json{{"chat_template",
                                {{{"name", "tools"}, {"template", "x"}},
                                 {{"name", "default"}, {"template", kTurns}}}}}
                    .dump());
  EXPECT_EQ(marked(R"({"instruction": "q", "output": "r"})"),
            "[user]\nq<|end|>\n[assistant]\n«r<|end|>\n»");
}

}  // namespace
}  // namespace sherd::data
