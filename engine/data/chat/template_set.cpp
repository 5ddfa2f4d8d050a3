#include "engine/data/chat/template_set.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Sources = std::vector<std::pair<std::string, std::string>>;  // name, source

std::optional<std::string> read_if_there(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  constexpr std::int64_t kMostBytes = 16 << 20;
  return read_small_file(path, kMostBytes);
}

// The "chat_template" of a JSON file: a text, or a list of {"name", "template"}.
Sources sources_in_json(const std::string& path) {
  const auto text = read_if_there(path);
  if (!text) return {};
  check_json_bounds(*text, path);
  const Json config = Json::parse(*text, nullptr, false);
  if (!config.is_object()) throw DataError("{}: isn't a JSON object.", path);
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return {{"default", found->get<std::string>()}};
  Sources sources;
  const auto is_text = [](const Json& one, const char* key) {
    return one.is_object() && one.contains(key) && one[key].is_string();
  };
  for (const Json& one : found->is_array() ? *found : Json(1)) {
    if (!is_text(one, "name") || !is_text(one, "template")) {
      throw DataError(
          "{}: its chat_template is neither a text nor a list of {{\"name\", \"template\"}}.",
          path);
    }
    sources.emplace_back(one["name"].get<std::string>(), one["template"].get<std::string>());
  }
  return sources;
}

std::vector<fs::path> additional_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder + "/additional_chat_templates", error), end;
       !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".jinja") files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TemplateSet::TemplateSet(const std::string& folder) : folder_(folder) {
  const std::string path = folder + "/chat_template.jinja";
  if (auto source = read_if_there(path)) add("default", std::move(*source), path);
  for (const fs::path& file : additional_files(folder)) {
    if (auto source = read_if_there(file.native())) {
      add(file.stem().native(), std::move(*source), file.native());
    }
  }
  for (const char* name : {"/tokenizer_config.json", "/chat_template.json"}) {
    if (!templates_.empty()) break;
    const std::string json = folder + name;
    for (auto& [called, source] : sources_in_json(json)) add(called, std::move(source), json);
  }
  const NamedTemplate* usual = find("default");
  if (usual && !usual->parsed) throw DataError("{}", usual->problem);
}

// The last one of a name counts.
void TemplateSet::add(const std::string& name, std::string source, const std::string& where) {
  std::erase_if(templates_, [&](const NamedTemplate& one) { return one.name == name; });
  if (templates_.size() == kMostTemplates) {
    throw DataError("{}: more than {} chat templates.", where, kMostTemplates);
  }
  NamedTemplate& added = templates_.emplace_back();
  added.name = name;
  added.source = std::move(source);
  try {
    added.parsed = templates::Template::parse(added.source, where);
  } catch (const DataError& error) {
    added.problem = error.what();  // an error only where it is needed
  }
}

const NamedTemplate* TemplateSet::find(std::string_view name) const {
  const auto found = std::ranges::find(templates_, name, &NamedTemplate::name);
  return found == templates_.end() ? nullptr : &*found;
}

const NamedTemplate& TemplateSet::for_conversation(bool has_tools) const {
  const NamedTemplate* chosen = has_tools ? find("tool_use") : nullptr;
  if (!chosen) chosen = find("default");
  if (chosen && chosen->parsed) return *chosen;
  if (chosen) throw DataError("{}", chosen->problem);
  if (templates_.empty()) {
    throw DataError(
        "{} has no chat_template.jinja, and its tokenizer_config.json no chat_template, which "
        "messages need",
        folder_);
  }
  std::string names;
  for (const NamedTemplate& one : templates_) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", one.name);
  }
  throw DataError(
      "{} has the chat templates {}, and none is \"default\", which conversations without tools "
      "need",
      folder_, names);
}

}  // namespace sherd::data
