// The spans of answers, for compare_spans.py: a line of JSON {"folder", "messages"} each, answered by a line
// {"text", "spans", "rewritten", "renderings"} or {"error"}; spans count bytes. "one_by_one": true renders each
// beginning of the conversation by itself, false all of them at once where the template allows it.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "engine/data/chat/chat_format.h"

int main() {
  using namespace sherd;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json answer;
    try {
      const auto ask = nlohmann::ordered_json::parse(line);
      const std::string folder = ask["folder"];
      data::ChatOptions options;
      if (ask.contains("one_by_one")) {
        options.renderings =
            ask["one_by_one"] ? data::Renderings::kOneByOne : data::Renderings::kAllTogether;
      }
      const data::ChatFormat format(folder, tokenizer::Tokenizer::open(folder), options);
      const auto rendered = format.render(
          data::read_conversation(nlohmann::ordered_json{{"messages", ask["messages"]}}.dump()));
      answer["text"] = rendered.text.bytes;
      answer["rewritten"] = rendered.was_rewritten;
      answer["renderings"] = rendered.num_renderings;
      answer["spans"] = nlohmann::ordered_json::array();
      for (const auto& span : rendered.trained) answer["spans"].push_back({span.begin, span.end});
    } catch (const Error& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump() << std::endl;
  }
}
