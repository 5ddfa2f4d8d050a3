/// The chat templates of a tokenizer's folder, and which of them a conversation gets.
///
/// Found as transformers 5.23 finds them: chat_template.jinja is the template "default", and each
/// additional_chat_templates/NAME.jinja one called NAME; where there are none, "chat_template" of
/// tokenizer_config.json, a text or a list of {"name", "template"}; where that isn't there either,
/// "chat_template" of chat_template.json, as of processors.
///
/// A conversation with tools gets "tool_use" where there is one, every other "default".
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

  /// Errors   DataError: a file that can't be read or has no template where one should be; more than
  ///          kMostTemplates; a template "default" that isn't known here, by its line
  explicit TemplateSet(const std::string& folder);

  /// Errors   DataError: there is none
  const NamedTemplate& for_conversation(bool has_tools) const;
  /// Whether some conversation gets it.
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
