// Where answers are, found by all beginnings of a conversation at once and by each of them alone.
#include "engine/data/chat/answer_places.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/data/chat/chat_format.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

const char* const kTemplates[] = {
    "{% for m in messages %}<|end|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|end|>assistant\n{% endif %}",
    // nothing ends a turn
    "{% for m in messages %}<|end|>{{ m.role }}\n{{ m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|end|>assistant\n{% endif %}",
    // the prompt opens thinking
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}<think>\n\n</think>{% "
    "endif %}"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}[assistant]<think>{% endif %}",
    // earlier thinking is left out
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('x')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    // a system text at the head, the prompt in the last round
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}[{{ m.role }}]{{ m.content }}"
    "<|end|>{% if loop.last and add_generation_prompt %}[assistant]{% endif %}{% endfor %}",
    // looks ahead
    "{% set last = messages | length - 1 %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{{ '' if loop.index0 == last else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
};

std::uint64_t below(std::uint64_t& state, std::uint64_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % n;
}

nlohmann::json random_conversation(std::uint64_t& state) {
  const std::string pieces[] = {"x", "a<|end|>", "", " ", "<think>", "[assistant]", "b\n", "é"};
  const auto content = [&] {
    std::string text;
    for (std::uint64_t n = below(state, 4); n > 0; --n) text += pieces[below(state, 8)];
    return text;
  };
  nlohmann::json messages = nlohmann::json::array();
  const auto add = [&](const char* role) {
    messages.push_back({{"role", role}, {"content", content()}});
  };
  if (below(state, 2) == 0) add("system");
  for (std::uint64_t turns = 1 + below(state, 6); turns > 0; --turns) {
    add("user");
    if (below(state, 5) > 0) add("assistant");
    if (below(state, 5) == 0) messages.back()["weight"] = 0;
  }
  return {{"messages", messages}};
}

class Places : public testing::Test {
 protected:
  ChatFormat format(const std::string& source, Renderings how, TrainOn train_on) const {
    const std::string folder = folder_.file("tokenizer");
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/chat_template.jinja", source);
    return {folder, tokenizer::Tokenizer::open(folder), {.train_on = train_on, .renderings = how}};
  }
  test::TempFolder folder_;
};

TEST_F(Places, AreTheSameHoweverBeginningsAreRendered) {
  std::uint64_t state = 5;
  for (const char* source : kTemplates) {
    for (const TrainOn train_on : {TrainOn::kAssistant, TrainOn::kLast, TrainOn::kCompletion}) {
      const ChatFormat together = format(source, Renderings::kAllTogether, train_on);
      const ChatFormat one_by_one = format(source, Renderings::kOneByOne, train_on);
      const ChatFormat fewest = format(source, Renderings::kFewest, train_on);
      for (int i = 0; i < 60; ++i) {
        const Conversation conversation = read_conversation(random_conversation(state).dump());
        const auto expected = one_by_one.render(conversation);
        for (const ChatFormat* other : {&together, &fewest}) {
          const auto rendered = other->render(conversation);
          ASSERT_EQ(rendered.text.bytes, expected.text.bytes);
          ASSERT_EQ(rendered.trained, expected.trained) << rendered.text.bytes;
          ASSERT_EQ(rendered.was_rewritten, expected.was_rewritten);
        }
      }
    }
  }
}

TEST_F(Places, OfALongConversationTakeAsManyRenderingsAsOfAShortOne) {
  for (const int answers : {3, 30, 300}) {
    nlohmann::json messages = nlohmann::json::array();
    for (int i = 0; i < answers; ++i) {
      messages.push_back({{"role", "user"}, {"content", "q" + std::to_string(i)}});
      messages.push_back({{"role", "assistant"}, {"content", "a" + std::to_string(i)}});
    }
    const Conversation conversation =
        read_conversation(nlohmann::json{{"messages", messages}}.dump());
    const auto rendered =
        format(kTemplates[0], Renderings::kFewest, TrainOn::kAssistant).render(conversation);
    EXPECT_EQ(rendered.trained.size(), static_cast<std::size_t>(answers));
    EXPECT_EQ(rendered.num_renderings, 3)
        << "the whole, and all beginnings without and with a prompt";
  }
}

}  // namespace
}  // namespace sherd::data
