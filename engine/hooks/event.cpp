#include "engine/hooks/event.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

namespace sherd::engine {
namespace {

using Json = nlohmann::ordered_json;

Json facts_of(HookEvent event, const HookFacts& facts) {
  Json json = {{"event", name_of(event)},
               {"run", facts.run},
               {"output_dir", facts.output_dir},
               {"step", facts.step}};
  if (facts.max_steps > 0) json["max_steps"] = facts.max_steps;
  if (facts.loss) json["loss"] = *facts.loss;
  if (facts.val_loss) json["val_loss"] = *facts.val_loss;
  if (!facts.checkpoint.empty()) json["checkpoint"] = facts.checkpoint;
  if (facts.exit_code) json["exit_code"] = *facts.exit_code;
  if (!facts.error.empty()) json["error"] = facts.error;
  if (facts.attempt > 0) json["attempt"] = facts.attempt;
  return json;
}

bool is_of_a_launcher(std::string_view variable) {
  constexpr std::array kBeginnings = {"OMPI_",         "PMIX_",
                                      "PRTE_",         "PMI_",
                                      "RANK=",         "LOCAL_RANK=",
                                      "WORLD_SIZE=",   "TORCHELASTIC_",
                                      "SHERD_SECRET=", "GROUP_RANK=",
                                      "GROUP_WORLD_",  "LOCAL_WORLD_SIZE=",
                                      "ROLE_RANK=",    "ROLE_WORLD_SIZE=",
                                      "ROLE_NAME=",    "MASTER_ADDR=",
                                      "MASTER_PORT="};
  return std::ranges::any_of(kBeginnings,
                             [&](const char* text) { return variable.starts_with(text); });
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());  // nan, too
  return value.dump();
}

}  // namespace

const char* name_of(HookEvent event) {
  constexpr std::array kNames = {"start", "step", "evaluation", "save", "end", "failure"};
  return kNames[static_cast<std::size_t>(event)];
}

std::string json_of(HookEvent event, const HookFacts& facts) {
  return facts_of(event, facts).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<std::string> environment_of(HookEvent event, const HookFacts& facts) {
  std::vector<std::string> variables;
  const Json json = facts_of(event, facts);
  for (const auto& [key, value] : json.items()) {
    std::string name = "SHERD_";
    for (const char c : key) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    variables.push_back(name + "=" + text_of(value));
  }
  const auto is_fact = [&](std::string_view variable) {
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    return std::ranges::any_of(variables,
                               [&](const std::string& fact) { return fact.starts_with(name); });
  };
  std::vector<std::string> inherited;
  for (char** variable = environ; *variable; ++variable) {
    if (!is_of_a_launcher(*variable) && !is_fact(*variable)) inherited.emplace_back(*variable);
  }
  variables.insert(variables.end(), inherited.begin(), inherited.end());
  return variables;
}

}  // namespace sherd::engine
