// Renders what compare.py asks for: a line of JSON {"template", "variables", "date"} each, answered by a
// line {"text"} or {"error"}. Links the engine's library.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "engine/data/template/json_value.h"
#include "engine/data/template/template.h"

int main() {
  using namespace sherd::templates;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json answer;
    try {
      const auto ask = nlohmann::ordered_json::parse(line);
      const Value variables = value_of_json(ask["variables"].dump(), kFromData);
      const Template parsed = Template::parse(ask["template"].get<std::string>(), "template");
      answer["text"] = parsed.render(*variables.dict(), ask["date"].get<std::int64_t>()).bytes;
    } catch (const sherd::Error& error) {
      answer["error"] = error.what();
    } catch (const Problem& problem) {
      answer["error"] = problem.text;
    }
    std::cout << answer.dump() << std::endl;
  }
}
