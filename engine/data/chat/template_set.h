/// The chat templates of a tokenizer's folder, and which of them applies to a conversation.
///
/// They are found as in transformers 5.23. The first source that exists counts:
///   1. chat_template.jinja, named "default", and additional_chat_templates/NAME.jinja, named NAME
///   2. "chat_template" of tokenizer_config.json: a text, or a list of {"name", "template"}
///   3. "chat_template" of chat_template.json, as processors have it
///
/// A conversation with tools uses "tool_use" if it exists. All others use "default".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/template/template.h"

namespace sherd::data {

struct NamedTemplate {
  std::string name, source;
  std::optional<templates::Template> parsed;
  std::string problem;  ///< why it isn't parsed
};

class TemplateSet {
 public:
  static constexpr std::size_t kMostTemplates = 100;

  /// Errors   DataError: a file can't be read or lacks an expected template; there are more than
  ///          kMostTemplates; the template "default" is unsupported (the message names the line)
  explicit TemplateSet(const std::string& folder);

  /// Errors   DataError: there is none
  const NamedTemplate& for_conversation(bool has_tools) const;
  /// Whether any conversation can use it.
  bool is_used(const NamedTemplate& one) const {
    return one.name == "default" || one.name == "tool_use";
  }
  bool empty() const { return templates_.empty(); }
  const std::vector<NamedTemplate>& all() const { return templates_; }

 private:
  void add(const std::string& name, std::string source, const std::string& where);
  const NamedTemplate* find(std::string_view name) const;

  std::string folder_;
  std::vector<NamedTemplate> templates_;
};

}  // namespace sherd::data
