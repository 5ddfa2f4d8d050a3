// What random recipes are written as, and the texts that they name.

#include <fmt/format.h>

#include "tests/support/models/small_tokenizer.h"
#include "tests/support/random/random_recipe.h"

namespace sherd::testing {

std::string recipe_text(const Settings& settings) {
  std::string text, block;
  for (const auto& [key, value] : settings) {
    const std::string of_key = key.substr(0, key.find('.'));
    if (of_key != block) text += of_key + ":\n";
    block = of_key;
    text += fmt::format("  {}: {}\n", key.substr(key.find('.') + 1), value);
  }
  return text;
}

void write_recipe_data(const test::TempFolder& folder) {
  std::string bytes, characters, ids;
  const char* words[] = {"the ", "quick ", "brown ", "fox ", "jumps\n"};
  const char* letters[] = {"h", "é", "ß", "e", "l", "o", " ", "w", "r", "d", "!", "\n"};
  for (unsigned i = 0; i < 700; ++i) {
    bytes += words[(i * i + i / 3) % 5];
    characters += letters[(i * i + i / 5) % 12];
    characters += letters[i % 12];
    ids += static_cast<char>((i * i + i / 7) % (kLargestId + 1));
    ids += '\0';
  }
  for (const char* ending : {".txt", ".validation.txt"}) {
    folder.write(std::string("bytes") + ending, bytes + ending);
    folder.write(std::string("chars") + ending, characters);
    folder.write(std::string("bin") + ending, ids + std::string(ending[1] == 'v' ? 2 : 4, '\0'));
  }
  folder.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
  folder.write("chat_tokenizer/tokenizer.json", test::small_tokenizer().dump());
  folder.write("chat_tokenizer/chat_template.jinja",
               "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
  for (const char* ending : {".jsonl", ".validation.jsonl"}) {
    std::string lines;
    for (std::size_t i = 0; i < 60; ++i) {
      const nlohmann::json line = {{"instruction", bytes.substr(i, i % 7)},
                                   {"output", bytes.substr(i, 2 + i % 11)}};
      lines += line.dump() + "\n";
    }
    folder.write(std::string("chat") + ending, lines);
    std::string pairs, judged;
    for (std::size_t i = 0; i < 60; ++i) {
      const std::string prompt = bytes.substr(i, 1 + i % 5), answer = bytes.substr(i, 2 + i % 7);
      pairs += nlohmann::json{{"prompt", prompt}, {"chosen", answer}, {"rejected", answer + "x"}}
                   .dump() +
               "\n";
      judged +=
          nlohmann::json{{"prompt", prompt}, {"completion", answer}, {"label", i % 3 == 0}}.dump() +
          "\n";
    }
    folder.write(std::string("pairs") + ending, pairs);
    folder.write(std::string("judged") + ending, judged);
  }
  for (const auto& [format, tokens] :
       {std::pair("bytes", 256), std::pair("chars", 12), std::pair("bin", 12),
        std::pair("text", 259), std::pair("chat", 259)}) {
    std::string lines = fmt::format("{{\"sherd_task\": 1, \"vocab_size\": {}}}\n", tokens);
    for (int i = 0; i < 7; ++i) {  // of one token each, which fit the shortest sequences
      lines += fmt::format(
          "{{\"context\": [{}], \"choices\": [[{}], [{}]], \"bytes\": [1, 2], \"answer\": {}}}\n",
          i, i + 3, (i * i) % 11, i % 2);
    }
    folder.write(fmt::format("questions.{}.jsonl", format), lines);
  }
  folder.write("texts/a.txt", bytes.substr(0, 1500));
  folder.write("texts/below/b.txt", bytes.substr(700));
}

}  // namespace sherd::testing
