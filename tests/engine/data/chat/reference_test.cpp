// What transformers and TRL make of the same folders and rows (tests/reference/templates).
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/data/chat/chat_format.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::data {
namespace {

using nlohmann::json;

json reference(const std::string& name) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/data/chat/" + name);
  return json::parse(file);
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// The text, or that there is none.
json rendered(const std::string& folder, const json& row, const json& tools) {
  try {
    const auto tokenizer = tokenizer::Tokenizer::open(folder);
    const ConversationRenderer renderer(folder, tokenizer->named_tokens());
    const Conversation conversation =
        read_conversation(json{{"messages", row}, {"tools", tools}}.dump());
    return {{"text", renderer.render(conversation, {.count = conversation.messages.size()}).bytes}};
  } catch (const DataError&) {
    return {{"error", true}};
  }
}

TEST(ChatReference, FoldersNameTokensAndTemplatesAsTransformersReadsThem) {
  const json reference_cases = reference("folders.json");
  for (const auto& [name, expected] : reference_cases["cases"].items()) {
    const test::TempFolder folder;
    folder.write("tokenizer.json", reference_cases["tokenizer"].dump());
    for (const auto& [file, content] : expected["files"].items()) {
      folder.write(file, text_of(content));
    }
    json special = json::object();
    const auto tokenizer = tokenizer::Tokenizer::open(folder.path());
    for (const tokenizer::NamedToken& token : tokenizer->named_tokens()) {
      special[token.name] = token.token.content;
    }
    EXPECT_EQ(special, expected["special"]) << name;
    for (const auto& [key, tools] :
         {std::pair{"without_tools", json()}, std::pair{"with_tools", reference_cases["tools"]}}) {
      const json answer = rendered(folder.path(), reference_cases["row"], tools);
      EXPECT_EQ(answer.contains("error"), expected[key].contains("error")) << name << " " << key;
      if (answer.contains("error")) continue;
      EXPECT_EQ(answer, expected[key]) << name << " " << key;
    }
  }
}

TEST(ChatReference, RowsAreTrainedOnAsTrlTrainsOnThem) {
  const json cases = reference("forms.json");
  const test::TempFolder folder;
  folder.write("tokenizer.json", cases["tokenizer"].dump());
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})");
  folder.write("chat_template.jinja", cases["template"].get<std::string>());
  const auto tokenizer = tokenizer::Tokenizer::open(folder.path());
  tokenizer::Encoder encoder(tokenizer);
  for (const json& one : cases["rows"]) {
    const TrainOn train_on =
        one["row"].contains("completion") ? TrainOn::kCompletion : TrainOn::kAssistant;
    const ChatFormat format(folder.path(), tokenizer, {.train_on = train_on});
    const EncodedConversation encoded =
        format.encode(read_conversation(one["row"].dump()), encoder);
    std::string text, expected_text, loss, expected_loss;
    for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
      const std::string token = tokenizer->decode(std::array{encoded.ids[i]}, false);
      text += token;
      loss += std::string(token.size(), encoded.trained[i] != 0 ? '1' : '0');
    }
    for (const json& part : one["parts"]) {
      expected_text += part[0].get<std::string>();
      expected_loss += std::string(part[0].get<std::string>().size(), part[1] ? '1' : '0');
    }
    EXPECT_EQ(text, expected_text) << one["row"];
    EXPECT_EQ(loss, expected_loss) << one["row"];
  }
}

}  // namespace
}  // namespace sherd::data
