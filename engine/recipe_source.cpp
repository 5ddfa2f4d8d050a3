#include "engine/recipe_source.h"

#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/error.h"
#include "engine/recipe_fields.h"
#include "engine/recipe_suggest.h"

namespace sherd::engine {
namespace {

constexpr std::uintmax_t kMaxFileBytes = 1 << 20;

bool is_block(std::string_view name) {
  for (const Block& block : recipe_blocks()) {
    if (block.name == name) return true;
  }
  return false;
}

std::string without_final_stop(std::string text) {
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::vector<YAML::Node> load(const std::string& yaml, const std::string& path, bool is_file) {
  try {
    return YAML::LoadAll(yaml);
  } catch (const YAML::Exception& error) {
    const std::string where =
        is_file && !error.mark.is_null() ? fmt::format("{}:{}", path, error.mark.line + 1) : path;
    const char* hint =
        error.msg.find("anchor") != std::string::npos ? " Quote text that begins with * or &." : "";
    throw UsageError("{}: malformed YAML: {}.{}", where, without_final_stop(error.msg), hint);
  }
}

RawValue raw_value(const YAML::Node& node, bool inside_list = false) {
  RawValue raw;
  if (node.IsScalar()) {
    raw.kind = node.Tag() == "!" ? RawValue::Kind::kQuoted : RawValue::Kind::kPlain;
    raw.text = node.Scalar();
  } else if (node.IsMap()) {
    raw.kind = RawValue::Kind::kBlock;
  } else if (node.IsSequence()) {
    raw.kind = RawValue::Kind::kList;
    // No key takes lists of lists, and a list that holds itself through an alias would never end.
    if (!inside_list) {
      for (const YAML::Node& item : node) raw.items.push_back(raw_value(item, true));
    }
  }
  return raw;
}

/// Reads one file; `lines_` remembers where each key was first written.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  std::vector<Assignment> read(const YAML::Node& root) {
    for (const auto& entry : root) {
      const YAML::Node &key_node = entry.first, &node = entry.second;
      const std::string block = name_of(key_node, "a block");
      const std::string where = at(key_node);
      if (!is_block(block)) fail_at_top_level(where, block, node);
      remember(block, key_node);
      if (node.IsNull()) continue;  // all its keys are commented out
      if (!node.IsMap()) {
        throw UsageError(
            "{}: \"{}\" is a block of keys, but holds {}. Write its keys below it, indented.",
            where, block, raw_value(node).describe());
      }
      read_block(block, node);
    }
    return std::move(assignments_);
  }

 private:
  void read_block(const std::string& block, const YAML::Node& node) {
    for (const auto& entry : node) {
      const YAML::Node& key_node = entry.first;
      const std::string key = block + "." + name_of(key_node, "a key");
      if (field_index(key) < 0) throw UsageError("{}: {}", at(key_node), unknown_key(key));
      remember(key, key_node);
      Assignment assignment;
      assignment.key = key;
      assignment.value = raw_value(entry.second);
      assignment.where = at(key_node);
      assignment.origin = {Origin::Kind::kFile, assignment.where};
      assignments_.push_back(std::move(assignment));
    }
  }

  [[noreturn]] void fail_at_top_level(const std::string& where, const std::string& name,
                                      const YAML::Node& node) const {
    if (const int row = field_index(name); row >= 0) {
      const Field& field = recipe_fields()[static_cast<std::size_t>(row)];
      throw UsageError("{}: \"{}\" is written as one key. Write \"{}:\" below \"{}:\", indented.",
                       where, name, field.name(), field.block());
    }
    throw UsageError("{}: {}", where, node.IsMap() ? unknown_block(name) : unknown_key(name));
  }

  std::string name_of(const YAML::Node& key_node, const char* what) const {
    if (!key_node.IsScalar()) {
      throw UsageError("{}: the name of {} is {}; expected a word.", at(key_node), what,
                       raw_value(key_node).describe());
    }
    return key_node.Scalar();
  }

  void remember(const std::string& key, const YAML::Node& key_node) {
    const auto [earlier, is_new] = lines_.emplace(key, key_node.Mark().line + 1);
    if (!is_new) {
      throw UsageError("{}: \"{}\" is written twice, first in line {}. Keep one.", at(key_node),
                       key, earlier->second);
    }
  }

  std::string at(const YAML::Node& node) const {
    return node.Mark().is_null() ? path_ : fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  const std::string& path_;
  std::map<std::string, int> lines_;
  std::vector<Assignment> assignments_;
};

}  // namespace

std::string RawValue::describe() const {
  switch (kind) {
    case Kind::kNothing:
      return "empty";
    case Kind::kList:
      return "a list";
    case Kind::kBlock:
      return "a block of keys";
    case Kind::kPlain:
      // Numbers stand bare in messages, words in quotes.
      if (!text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos)
        return text;
      [[fallthrough]];
    case Kind::kQuoted:
      break;
  }
  constexpr std::size_t kShown = 60;
  return fmt::format("\"{}{}\"", text.substr(0, kShown), text.size() > kShown ? "..." : "");
}

std::string read_recipe_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UsageError("{}: is a folder; expected a recipe, a YAML file.", path);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("{}: can't read the recipe: {}.", path, std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw UsageError("{}: can't read the recipe: {}.", path, std::strerror(errno));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    throw UsageError("{}: is larger than 1 MiB; expected a recipe, a small YAML file.", path);
  }
  return text;
}

std::vector<Assignment> parse_recipe(const std::string& path, const std::string& text) {
  const std::vector<YAML::Node> documents = load(text, path, true);
  if (documents.empty() || documents[0].IsNull()) {
    throw UsageError("{}: the recipe is empty. docs/recipe.md lists its keys.", path);
  }
  if (documents.size() > 1) {
    throw UsageError("{}: holds {} YAML documents; expected one.", path, documents.size());
  }
  if (!documents[0].IsMap()) {
    throw UsageError("{}: the recipe is {}; expected blocks of keys.", path,
                     raw_value(documents[0]).describe());
  }
  return Reader(path).read(documents[0]);
}

RawValue parse_value(const std::string& yaml, const std::string& where) {
  const std::vector<YAML::Node> documents = load(yaml, where, false);
  if (documents.empty()) return {};
  if (documents.size() > 1) throw UsageError("{}: expected a single value.", where);
  return raw_value(documents[0]);
}

Assignment parse_set(const std::string& set) {
  const std::string where = "--set " + set;
  const std::size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("{}: expected key=value, such as --set training.max_steps=100.", where);
  }
  const std::string key = set.substr(0, equals);
  const std::string text = set.substr(equals + 1);
  if (is_block(key)) {
    throw UsageError("{}: \"{}\" is a block of keys. Set one of them, as in --set {}.KEY=VALUE.",
                     where, key, key);
  }
  const int row = field_index(key);
  if (row < 0) throw UsageError("{}: {}", where, unknown_key(key));

  const Field& field = recipe_fields()[static_cast<std::size_t>(row)];
  const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
  const bool as_it_stands = std::holds_alternative<Member<std::string>>(field.slot) && !is_quoted;
  Assignment assignment;
  assignment.key = key;
  assignment.value = as_it_stands ? RawValue{.kind = RawValue::Kind::kQuoted, .text = text}
                                  : parse_value(text, where);
  assignment.origin = {Origin::Kind::kSet, "--set"};
  assignment.where = where;
  return assignment;
}

}  // namespace sherd::engine
