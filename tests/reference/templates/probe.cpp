// Renders what compare.py asks for: a line of JSON {"template", "variables", "date"} each, answered by a
// line {"text"} or {"error"}, with "used": the share of each limit that the rendering took. Links the engine's library.
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
    Used used;
    std::string source;
    try {
      const auto ask = nlohmann::ordered_json::parse(line);
      const Value variables = value_of_json(ask["variables"].dump(), kFromData);
      source = ask["template"].get<std::string>();
      const Template parsed = Template::parse(source, "template");
      const auto date = ask["date"].get<std::int64_t>();
      answer["text"] = parsed.render(*variables.dict(), date, {}, &used).bytes;
    } catch (const sherd::Error& error) {
      answer["error"] = error.what();
    } catch (const Problem& problem) {
      answer["error"] = problem.text;
    }
    const auto share = [](auto of, auto limit) {
      return static_cast<double>(of) / static_cast<double>(limit);
    };
    answer["used"] = {{"steps", share(used.steps, Limits{}.steps)},
                      {"bytes", share(used.bytes, Limits{}.bytes)},
                      {"depth", share(used.depth, Limits{}.depth)},
                      {"source", share(source.size(), kMostSourceBytes)}};
    std::cout << answer.dump() << std::endl;
  }
}
