/// Chat templates: the part of Jinja that they use, rendered as Hugging Face's library renders it, with
/// the origin of every byte.
///
/// Taken     output, if, for with if and else, break, continue, set and set blocks, macros, call and
///           filter blocks, generation, raw, comments, white space control; all operators, slices,
///           tests, filters and methods in functions.h; namespace, range, dict, raise_exception.
/// Refused   by name and line: everything else, when the template is read; names of filters and tests in
///           what a condition may leave out only when they are reached, as in jinja2.
/// Bounds    budget.h has them: a hostile template ends, and an honest one stays within a hundredth.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/template/growing.h"
#include "engine/data/template/value.h"

namespace sherd::templates {

struct TemplateTree;

class Template {
 public:
  /// `where` names the source in messages.
  /// Errors   DataError "where:line: ..."
  static Template parse(std::string_view source, std::string_view where);

  /// Whether it says itself what is generated: {% generation %}.
  bool has_generation() const { return has_generation_; }

  /// `variables`: messages, tools, add_generation_prompt, bos_token, ... `date`: what strftime_now
  /// formats, in UTC; without it there is no strftime_now, so that the same data make the same
  /// tokens on every day.
  /// Errors   DataError with the line: what raise_exception says, or what Python would raise
  /// and reaching one of `limits`. `used`: what was used of them, also where it ends with an error.
  MarkedText render(const Dict& variables, std::optional<std::int64_t> date = {},
                    const Limits& limits = {}, Used* used = nullptr) const;

  /// Beginnings of a list of messages, which `variables` doesn't have, in one rendering (growing.h). None if
  /// this template looks at its messages in a way that differs between beginnings, or fails, or takes more
  /// than `limits` for all of them together; those that fail alone aren't known.
  std::optional<Beginnings> render_beginnings(const Dict& variables,
                                              const BeginningsRequest& request,
                                              const Limits& limits = {}) const;

 private:
  std::shared_ptr<const TemplateTree> tree_;
  bool has_generation_ = false;
};

}  // namespace sherd::templates
