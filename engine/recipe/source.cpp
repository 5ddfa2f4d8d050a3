#include "engine/recipe/source.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "core/small_file.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/suggest.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kMaxFileBytes = 1 << 20;

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

/// Reads over a document.
class Skip final : public YAML::EventHandler {
  using Mark = YAML::Mark;
  using Text = std::string;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const Text&, YAML::anchor_t, const Text&) override {}
  void OnSequenceStart(const Mark&, const Text&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const Text&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// The first document, and an empty node for a second one; more aren't needed. YAML::LoadAll never
// returns from "...\n," (yaml-cpp 0.7).
std::vector<YAML::Node> first_documents(const std::string& yaml) {
  std::istringstream in(yaml);
  YAML::Parser parser(in);
  Skip skip;
  std::size_t count = 0;
  while (count < 2 && parser.HandleNextDocument(skip)) ++count;
  std::vector<YAML::Node> documents(count);
  if (count > 0) documents[0] = YAML::Load(yaml);
  return documents;
}

std::string_view trimmed(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
}

bool is_name(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
             std::string_view::npos;
}

/// Why a text isn't YAML: ":LINE: " and a sentence; "" if unknown.
std::string other_language(const std::string& text) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::size_t indent = line.find_first_not_of(" \t");
    if (indent != std::string::npos && line.substr(0, indent).find('\t') != std::string::npos) {
      return fmt::format(":{}: the line is indented with a tab; YAML takes spaces only.", number);
    }
    const std::string_view content = trimmed(line);
    if (content.size() > 2 && content.front() == '[' && content.back() == ']' &&
        is_name(content.substr(1, content.size() - 2))) {
      return fmt::format(
          ":{}: \"{}\" is TOML; a recipe is YAML. Write \"{}:\", and below it, indented, \"key: "
          "value\".",
          number, content, content.substr(1, content.size() - 2));
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = trimmed(content.substr(0, equals));
    if (!is_name(name)) continue;
    return fmt::format(
        ":{}: \"{} =\" isn't YAML. Write \"{}:\" and the value, below the name of "
        "its block.",
        number, name, name);
  }
  return {};
}

std::vector<YAML::Node> load(const std::string& yaml, const std::string& path, bool is_file) {
  try {
    return first_documents(yaml);
  } catch (const YAML::Exception& error) {
    if (const std::string other = is_file ? other_language(yaml) : ""; !other.empty()) {
      throw UsageError("{}{}", path, other);
    }
    const std::string where =
        is_file && !error.mark.is_null() ? fmt::format("{}:{}", path, error.mark.line + 1) : path;
    const char* hint =
        error.msg.find("anchor") != std::string::npos ? " Quote text that begins with * or &." : "";
    throw UsageError("{}: malformed YAML: {}.{}", where, without_final_stop(error.msg), hint);
  }
}

// A list of blocks, a block, a list in it, its items. No key is deeper, and a list that holds
// itself through an alias would never end.
constexpr int kDeepest = 3;

/// The values of one text. Aliases repeat what they name: a small text could take all memory.
class Values {
 public:
  explicit Values(std::string where) : where_(std::move(where)) {}

  RawValue value(const YAML::Node& node, int depth = 0) {
    RawValue raw;
    if (node.IsScalar()) {
      raw.kind = node.Tag() == "!" ? RawValue::Kind::kQuoted : RawValue::Kind::kPlain;
      raw.text = node.Scalar();
    } else if (node.IsMap()) {
      raw.kind = RawValue::Kind::kBlock;
      for (const auto& entry : node) {
        if (depth >= kDeepest) break;
        raw.keys.push_back(value(entry.first, kDeepest).text);
        raw.items.push_back(value(entry.second, depth + 1));
      }
    } else if (node.IsSequence()) {
      raw.kind = RawValue::Kind::kList;
      for (const YAML::Node& item : node) {
        if (depth >= kDeepest) break;
        raw.items.push_back(value(item, depth + 1));
      }
    }
    count(raw.text);
    return raw;
  }

 private:
  // No file without aliases has more.
  static constexpr std::int64_t kMost = 2 * kMaxFileBytes;

  void count(const std::string& text) {
    count_ += 1 + std::ssize(text);
    if (count_ <= kMost) return;
    throw UsageError("{}: its values are longer than {} characters, as aliases (*) repeat them.",
                     where_, kMost);
  }

  std::string where_;
  std::int64_t count_ = 0;
};

/// Reads one file; `lines_` remembers where each key was first written.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), values_(path) {}

  ParsedRecipe read(const YAML::Node& root) {
    for (const auto& entry : root) {
      const std::optional<std::string> block = name_of(entry.first, "a block");
      if (block && is_known_block(*block, entry.first, entry.second)) {
        read_block(*block, entry.second);
      }
    }
    return std::move(parsed_);
  }

 private:
  void report(const YAML::Node& at_node, const std::string& problem) {
    parsed_.problems.push_back(at(at_node) + ": " + problem);
  }

  bool is_known_block(const std::string& block, const YAML::Node& key_node,
                      const YAML::Node& node) {
    if (!is_block(block)) {
      report(key_node, at_top_level(block, node));
      return false;
    }
    if (!is_first(block, key_node)) return false;
    if (node.IsNull()) return false;  // all its keys are commented out
    if (!node.IsMap()) {
      report(key_node,
             fmt::format("\"{}\" is a block of keys, but holds {}. Write its keys below it, "
                         "indented.",
                         block, values_.value(node).describe()));
      return false;
    }
    return true;
  }

  void read_block(const std::string& block, const YAML::Node& node) {
    for (const auto& entry : node) {
      const YAML::Node& key_node = entry.first;
      const std::optional<std::string> name = name_of(key_node, "a key");
      if (!name) continue;
      const std::string key = block + "." + *name;
      if (field_index(key) < 0) {
        report(key_node, unknown_key(key));
        continue;
      }
      if (!is_first(key, key_node)) continue;
      Assignment assignment;
      assignment.key = key;
      assignment.value = values_.value(entry.second);
      assignment.where = at(key_node);
      assignment.origin = {Origin::Kind::kFile, assignment.where};
      parsed_.assignments.push_back(std::move(assignment));
    }
  }

  static std::string at_top_level(const std::string& name, const YAML::Node& node) {
    if (const int row = field_index(name); row >= 0) {
      const Field& field = recipe_fields()[static_cast<std::size_t>(row)];
      return fmt::format("\"{}\" is written as one key. Write \"{}:\" below \"{}:\", indented.",
                         name, field.name(), field.block());
    }
    return node.IsMap() ? unknown_block(name) : unknown_key(name);
  }

  std::optional<std::string> name_of(const YAML::Node& key_node, const char* label) {
    if (key_node.IsScalar()) return key_node.Scalar();
    report(key_node, fmt::format("the name of {} is {}; expected a word.", label,
                                 values_.value(key_node).describe()));
    return std::nullopt;
  }

  bool is_first(const std::string& key, const YAML::Node& key_node) {
    const auto [earlier, is_new] = lines_.emplace(key, key_node.Mark().line + 1);
    if (!is_new) {
      report(key_node, fmt::format("\"{}\" is written twice, first in line {}. Keep one.", key,
                                   earlier->second));
    }
    return is_new;
  }

  std::string at(const YAML::Node& node) const {
    return node.Mark().is_null() ? path_ : fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  const std::string& path_;
  Values values_;
  std::map<std::string, int> lines_;
  ParsedRecipe parsed_;
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

std::string read_recipe_file(const std::string& path, std::string_view what) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UsageError("{}: is a folder; expected a {}, a YAML file.", path, what);
  }
  std::string problem;
  std::optional<std::string> text = read_small_file(path, kMaxFileBytes, problem);
  if (!text) throw UsageError("{}: can't read the {}: {}.", path, what, problem);
  return std::move(*text);
}

ParsedRecipe parse_recipe(const std::string& path, const std::string& text) {
  if (std::ssize(text) > kMaxFileBytes) {
    throw UsageError("{}: has {} bytes; a recipe has at most {}.", path, text.size(),
                     kMaxFileBytes);
  }
  const std::vector<YAML::Node> documents = load(text, path, true);
  if (documents.empty() || documents[0].IsNull()) {
    throw UsageError("{}: the recipe is empty. docs/recipe.md lists its keys.", path);
  }
  if (documents.size() > 1 || !documents[0].IsMap()) {
    const std::string other = other_language(text);
    if (!other.empty()) throw UsageError("{}{}", path, other);
  }
  if (documents.size() > 1) {
    throw UsageError("{}: holds several YAML documents; expected one.", path);
  }
  if (!documents[0].IsMap()) {
    throw UsageError("{}: the recipe is {}; expected blocks of keys.", path,
                     Values(path).value(documents[0]).describe());
  }
  return Reader(path).read(documents[0]);
}

RawValue parse_value(const std::string& yaml, const std::string& where) {
  const std::vector<YAML::Node> documents = load(yaml, where, false);
  if (documents.empty()) return {};
  if (documents.size() > 1) throw UsageError("{}: expected a single value.", where);
  return Values(where).value(documents[0]);
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
