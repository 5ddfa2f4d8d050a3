// The forms of conversations that other programs use, field by field: each is read, refused or named.
#include <gtest/gtest.h>

#include <array>

#include "engine/data/chat/chat_file.h"
#include "engine/data/dataset.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

// Shows roles, contents, names, tool calls with their arguments, and tools.
const std::string kShowsAll =
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}{{ ':' + m.name if m.name else '' }}]"
    "{{ m.content if m.content else '' }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }})"
    "{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
const std::string kPlain =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

class Forms : public testing::Test {
 protected:
  Forms() { use(kShowsAll); }

  void use(const std::string& source) {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    folder_.write("tokenizer/chat_template.jinja", source);
    tokenizer_ = tokenizer::Tokenizer::open(folder_.file("tokenizer"));
  }
  EncodedConversation encoded(const std::string& row,
                              TrainOn train_on = TrainOn::kAssistant) const {
    tokenizer::Encoder encoder(tokenizer_);
    return ChatFormat(folder_.file("tokenizer"), tokenizer_, {.train_on = train_on})
        .encode(read_conversation(row), encoder);
  }
  /// The text, with what is trained on in angles.
  std::string marked(const std::string& row, TrainOn train_on = TrainOn::kAssistant) const {
    const EncodedConversation conversation = encoded(row, train_on);
    std::string text;
    bool inside = false;
    for (std::size_t i = 0; i <= conversation.ids.size(); ++i) {
      const bool now = i < conversation.ids.size() && conversation.trained[i] != 0;
      if (now != inside) text += now ? "«" : "»";
      inside = now;
      if (i == conversation.ids.size()) break;
      text += tokenizer_->decode(std::array{conversation.ids[i]}, false);
    }
    return text;
  }
  std::string unfit(const std::string& row) const {
    try {
      encoded(row);
    } catch (const UnfitRow& problem) {
      return std::string(problem.reason());
    }
    return "fits";
  }
  std::shared_ptr<const Dataset> opened(const std::string& rows, Unfit unfit = Unfit::kDrop) const {
    DataOptions options{.path = folder_.write("chat.jsonl", rows),
                        .format = Format::kChat,
                        .validation_fraction = 0,
                        .vocab_size = 259,
                        .seq_length = 256,
                        .tokenizer = folder_.file("tokenizer"),
                        .separate_documents = true};
    options.chat.unfit = unfit;
    return open_dataset(options);
  }

  test::TempFolder folder_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

const std::string kFormTurns =
    R"([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])";
const std::string kMessages =
    R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";

TEST_F(Forms, ASystemTextOfTheRowComesFirstInEveryForm) {
  const std::string expected = "[system]S;[user]q;[assistant]«a;»";
  EXPECT_EQ(marked(R"({"system": "S", "conversations": )" + kFormTurns + "}"), expected);
  EXPECT_EQ(marked(R"({"system": "S", "messages": )" + kMessages + "}"), expected);
  EXPECT_EQ(marked(R"({"system": "S", "instruction": "q", "output": "a"})"), expected);
  EXPECT_EQ(marked(R"({"system": "S", "prompt": [{"role": "user", "content": "q"}],)"
                   R"( "completion": [{"role": "assistant", "content": "a"}]})",
                   TrainOn::kCompletion),
            expected);
  EXPECT_EQ(marked(R"({"system": "S", "messages": [{"role": "system", "content": "S"},)" +
                   kMessages.substr(1) + "}"),
            expected)
      << "the same text twice is one";
  EXPECT_EQ(unfit(R"({"system": "S", "messages": [{"role": "system", "content": "T"},)" +
                  kMessages.substr(1) + "}"),
            unfit::kRoleOrder);
  EXPECT_EQ(unfit(R"({"system": "S", "prompt": "q", "completion": "a"})"), unfit::kWrongType);
}

TEST_F(Forms, AlpacasHistoryComesBeforeTheQuestion) {
  EXPECT_EQ(marked(R"({"instruction": "q2", "output": "a2", "history": [["q1", "a1"]]})"),
            "[user]q1;[assistant]«a1;»[user]q2;[assistant]«a2;»");
  EXPECT_EQ(marked(R"({"instruction": "q", "output": "a", "history": []})"),
            "[user]q;[assistant]«a;»");
  EXPECT_EQ(unfit(R"({"instruction": "q", "output": "a", "history": ["q1", "a1"]})"),
            unfit::kWrongType);
}

TEST_F(Forms, FieldsThatAreNullAreAsIfTheyWereNotThere) {
  const std::string expected = "[user]q;[assistant]«a;»";
  EXPECT_EQ(marked(R"({"instruction": "q", "input": null, "output": "a"})"), expected);
  EXPECT_EQ(marked(R"({"instruction": "q", "system": null, "history": null, "output": "a"})"),
            expected);
  EXPECT_EQ(marked(R"({"messages": null, "tools": null, "conversations": )" + kFormTurns + "}"),
            expected);
  EXPECT_EQ(
      marked(R"({"messages": [{"role": "user", "content": "q", "name": null},)"
             R"( {"role": "assistant", "content": "a", "tool_calls": null, "weight": null}]})"),
      expected);
  EXPECT_EQ(unfit(R"({"instruction": "q", "output": null})"), unfit::kWrongType);
  EXPECT_EQ(unfit(R"({"messages": [{"role": "user", "content": null}]})"), unfit::kNoContent);
}

TEST_F(Forms, AMessageWithoutWeightHasNoLoss) {
  for (const char* without : {R"("weight": 0)", R"("train": false)", R"("loss": false)"}) {
    EXPECT_EQ(marked(R"({"messages": [{"role": "user", "content": "q"},)"
                     R"( {"role": "assistant", "content": "b", )" +
                     std::string(without) + R"(}, {"role": "user", "content": "r"},)" +
                     R"( {"role": "assistant", "content": "a", "weight": 1}]})"),
              "[user]q;[assistant]b;[user]r;[assistant]«a;»");
  }
  const std::string last = R"({"conversations": [{"from": "human", "value": "q"},)"
                           R"( {"from": "gpt", "value": "a", "weight": 0}]})";
  EXPECT_EQ(marked(last), "[user]q;[assistant]a;");
  EXPECT_EQ(marked(last, TrainOn::kAll), "«[user]q;[assistant]»a«;»");
  EXPECT_EQ(marked(last, TrainOn::kLast), "[user]q;[assistant]a;");
  EXPECT_EQ(unfit(R"({"messages": [{"role": "user", "content": "q", "weight": 0.5}]})"),
            unfit::kUnknownMask);
  for (const char* mask : {"mask", "loss_mask", "train_detail"}) {
    EXPECT_EQ(unfit(R"({"messages": [{"role": "user", "content": "q", ")" + std::string(mask) +
                    R"(": [1]}]})"),
              unfit::kUnknownMask);
  }
}

TEST_F(Forms, AMessageWithoutWeightHasNoLossWhereTheTemplateSaysWhatIsGenerated) {
  use("{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}");
  EXPECT_EQ(marked(R"({"messages": [{"role": "user", "content": "q"},)"
                   R"( {"role": "assistant", "content": "b", "weight": 0},)"
                   R"( {"role": "user", "content": "r"}, {"role": "assistant", "content": "a"}]})"),
            "[user]q;[assistant]b;[user]r;[assistant]«a;»");
}

TEST_F(Forms, ToolsAreAListOrItsJsonText) {
  const std::string expected = "<f>[user]q;[assistant]«a;»";
  const std::string tool = R"([{"type": "function", "function": {"name": "f"}}])";
  const std::string text = R"("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]")";
  EXPECT_EQ(marked(R"({"tools": )" + tool + R"(, "messages": )" + kMessages + "}"), expected);
  EXPECT_EQ(marked(R"({"tools": )" + text + R"(, "messages": )" + kMessages + "}"), expected);
  EXPECT_EQ(marked(R"({"tools": )" + text + R"(, "instruction": "q", "output": "a"})"), expected);
  EXPECT_EQ(marked(R"({"functions": [{"name": "f"}], "messages": )" + kMessages + "}"), expected)
      << "OpenAI's older field";
  EXPECT_EQ(marked(R"({"tools": "", "messages": )" + kMessages + "}"), "[user]q;[assistant]«a;»");
  EXPECT_EQ(marked(R"({"tools": "[]", "messages": )" + kMessages + "}"), "[user]q;[assistant]«a;»");
  EXPECT_EQ(unfit(R"({"tools": "f", "messages": )" + kMessages + "}"), unfit::kWrongType);
}

TEST_F(Forms, CallsOfToolsAreReadInEverySpelling) {
  const std::string expected = "[user]q;[assistant]«(f {\"x\": 1});»[tool]r;[assistant]«a;»";
  const auto messages = [](const std::string& call, const std::string& result) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" + call +
           R"(}, )" + result + R"(, {"role": "assistant", "content": "a"}]})";
  };
  const std::string result = R"({"role": "tool", "tool_call_id": "1", "content": "r"})";
  EXPECT_EQ(marked(messages(R"("content": null, "tool_calls": [{"id": "1", "type": "function",)"
                            R"( "function": {"name": "f", "arguments": {"x": 1}}}])",
                            result)),
            expected);
  EXPECT_EQ(marked(messages(R"("content": null, "tool_calls": [{"id": "1", "type": "function",)"
                            R"( "function": {"name": "f", "arguments": "{\"x\": 1}"}}])",
                            result)),
            expected)
      << "OpenAI's arguments are JSON text, which this template would print as a text";
  EXPECT_EQ(marked(messages(R"("content": null, "function_call": {"name": "f",)"
                            R"( "arguments": "{\"x\": 1}"})",
                            result)),
            expected)
      << "OpenAI's older field";
  EXPECT_EQ(
      marked(
          R"({"conversations": [{"from": "human", "value": "q"},)"
          R"( {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},)"
          R"( {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}]})"),
      expected)
      << "LLaMA-Factory's role";
  EXPECT_EQ(unfit(R"({"conversations": [{"from": "human", "value": "q"},)"
                  R"( {"from": "function_call", "value": "{}"}]})"),
            unfit::kWrongType);
  use(kPlain);
  EXPECT_EQ(unfit(messages(R"("content": "", "function_call": {"name": "f"})", result)),
            unfit::kToolCalls);
}

TEST_F(Forms, ContentInPartsIsTextForTemplatesThatKnowNoParts) {
  const std::string parts =
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"},)"
      R"( {"type": "text", "text": "r"}]}, {"role": "assistant", "content": "a"}]})";
  use(kPlain);
  EXPECT_EQ(marked(parts), "[user]qr;[assistant]«a;»");
  use("{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
      "{% else %}{% for p in m.content %}{{ p.text }}{{ '' if loop.last else '+' }}{% endfor %}{% "
      "endif %};{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  EXPECT_EQ(marked(parts), "[user]q+r;[assistant]«a;»");
  EXPECT_EQ(unfit(R"({"messages": [{"role": "user", "content": [{"type": "image_url",)"
                  R"( "image_url": {"url": "x"}}]}]})"),
            unfit::kMedia);
}

TEST_F(Forms, VariablesAndDocumentsOfARowReachTheTemplate) {
  use("{{ mood }}{% for d in documents or [] %}<{{ d.title }}>{% endfor %}" + kPlain);
  EXPECT_EQ(marked(R"({"chat_template_kwargs": {"mood": "calm"}, "documents": [{"title": "t"}],)"
                   R"( "messages": )" +
                   kMessages + "}"),
            "calm<t>[user]q;[assistant]«a;»");
  EXPECT_EQ(unfit(R"({"chat_template_kwargs": {"messages": []}, "messages": )" + kMessages + "}"),
            unfit::kWrongType);
}

TEST_F(Forms, TextsNeedNoTemplate) {
  EXPECT_EQ(marked(R"({"prompt": "q ", "completion": "a"})"), "q «a<|end|>»");
  EXPECT_EQ(marked(R"({"text": "some text"})"), "«some text<|end|>»");
}

TEST_F(Forms, WhatIsNotForAnswersIsUnfit) {
  EXPECT_EQ(unfit(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), unfit::kPreference);
  EXPECT_EQ(unfit(R"({"chosen": [], "rejected": []})"), unfit::kPreference);
  EXPECT_EQ(unfit(R"({"instruction": "q", "chosen": "a", "rejected": "b"})"), unfit::kPreference);
  EXPECT_EQ(unfit(R"({"prompt": "q", "completion": "a", "label": false})"), unfit::kPreference);
  EXPECT_EQ(unfit(R"({"kto_tag": true, "messages": )" + kMessages + "}"), unfit::kPreference);
  EXPECT_EQ(unfit(R"({"input": {}, "preferred_output": [], "non_preferred_output": []})"),
            unfit::kPreference);
  EXPECT_EQ(unfit(R"({"images": ["x.png"], "messages": )" + kMessages + "}"), unfit::kMedia);
  EXPECT_EQ(unfit(R"({"images": [], "messages": )" + kMessages + "}"), "fits");
  EXPECT_EQ(unfit(R"({"mask": "Assistant", "conversations": )" + kFormTurns + "}"),
            unfit::kUnknownMask);
  EXPECT_EQ(unfit(R"({"mask": "User", "conversations": )" + kFormTurns + "}"), "fits");
  EXPECT_EQ(unfit(R"({"prompt": "q"})"), unfit::kNoForm);
  EXPECT_EQ(unfit(R"({"question": "q", "answer": "a"})"), unfit::kNoForm);
  EXPECT_EQ(unfit(R"({"prompt": "q", "completion": [{"role": "assistant", "content": "a"}]})"),
            unfit::kWrongType);
}

TEST_F(Forms, WhatIsNotReadOrNotShownIsNamedWithItsRows) {
  use(kPlain);
  const auto data =
      opened(R"({"id": 1, "source": "s", "empty": "", "messages": )" + kMessages + "}\n" +
             R"({"id": 2, "tools": [{"type": "function", "function": {"name": "f"}}],)" +
             R"( "messages": [{"role": "user", "content": "q", "name": "Ada"},)" +
             R"( {"role": "assistant", "content": "a", "reasoning_content": "w"}]})" + "\n");
  EXPECT_NE(data->summary().find("\nfields that aren't read, with their rows: id (2), source (1)\n"
                                 "fields that the chat template doesn't show, with their rows: "
                                 "name (1), reasoning_content (1), tools (1)"),
            std::string::npos)
      << data->summary();
}

TEST_F(Forms, ASystemTextThatTheTemplateLeavesOutIsNamed) {
  use("{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  const auto data = opened(R"({"system": "S", "messages": )" + kMessages + "}\n");
  EXPECT_NE(data->summary().find("doesn't show, with their rows: messages of \"system\" (1)"),
            std::string::npos)
      << data->summary();
}

// One row for each thing that can be wrong, and one that fits.
const std::string kMixed = R"({"instruction": "q", "output": "a"}
{"instruction":
[]
{"question": "q"}
{"messages": 3}
{"messages": [{"role": "user"}]}
{"conversations": [{"from": "alien", "value": "x"}]}
{"conversations": [{"from": "gpt", "value": "welcome"}, {"from": "human", "value": "q"}]}
{"images": ["x"], "instruction": "q", "output": "a"}
{"chosen": "a", "rejected": "b"}
{"messages": [{"role": "user", "content": "q", "mask": 1}]}
{"messages": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]}
{"messages": []}
)";

TEST_F(Forms, EverythingThatIsWrongWithARowIsDroppedAndCountedByItsReason) {
  const std::string is_long =
      R"({"instruction": ")" + std::string(300, 'x') + R"(", "output": "a"})";
  const auto data = opened(kMixed + is_long + "\n");
  EXPECT_EQ(data->parts(Split::kTrain).size(), 1u);
  std::map<std::string, std::int64_t> rows;
  for (const auto& [reason, dropped] : data->chat_counts().dropped) rows[reason] = dropped.rows;
  const std::map<std::string, std::int64_t> expected = {
      {std::string(unfit::kNotJson), 1},     {std::string(unfit::kNoForm), 2},
      {std::string(unfit::kWrongType), 1},   {std::string(unfit::kNoContent), 1},
      {std::string(unfit::kUnknownRole), 1}, {std::string(unfit::kRoleOrder), 1},
      {std::string(unfit::kMedia), 1},       {std::string(unfit::kPreference), 1},
      {std::string(unfit::kUnknownMask), 1}, {std::string(unfit::kNoAnswer), 2},
      {std::string(unfit::kWeightless), 1},  {std::string(unfit::kLong), 1}};
  EXPECT_EQ(rows, expected);
  EXPECT_NE(data->summary().find("chat.jsonl:8: message 1 is an answer, but nothing was asked"),
            std::string::npos)
      << data->summary();
}

TEST_F(Forms, WithoutDropEachOfThemEndsTheRunWithItsLineAndWhatToDo) {
  std::size_t begin = kMixed.find('\n') + 1;
  while (begin < kMixed.size()) {
    const std::size_t end = kMixed.find('\n', begin);
    const std::string row = kMixed.substr(begin, end - begin);
    begin = end + 1;
    const std::string problem = test::error_text<DataError>(
        [&] { opened(kMixed.substr(0, kMixed.find('\n') + 1) + row, Unfit::kError); });
    EXPECT_NE(problem.find("chat.jsonl:2: "), std::string::npos) << row << problem;
    EXPECT_NE(problem.find("; fix the row, or set data.unfit: drop"), std::string::npos) << problem;
    EXPECT_EQ(problem.find('\n'), std::string::npos);
  }
}

TEST_F(Forms, WhereNothingIsLeftTheErrorSaysWhyWithNumbers) {
  const std::string problem = test::error_text<DataError>([&] {
    opened(R"({"messages": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]})"
           "\n\n{\n{\n");
  });
  EXPECT_NE(problem.find("no training conversation is left: 2 not JSON (first "), std::string::npos)
      << problem;
  EXPECT_NE(
      problem.find("1 no answer to train on (first " + folder_.file("chat.jsonl") +
                   ":1: no message has the role \"assistant\"; there are \"human\", \"gpt\")."),
      std::string::npos)
      << problem;
}

TEST_F(Forms, ATemplateThatRefusesARowMakesItUnfit) {
  use("{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% endif %}" + kPlain);
  EXPECT_EQ(unfit(R"({"instruction": "x", "output": "a"})"), unfit::kTemplate);
  EXPECT_EQ(unfit(R"({"instruction": "q", "output": "a"})"), "fits");
}

}  // namespace
}  // namespace sherd::data
