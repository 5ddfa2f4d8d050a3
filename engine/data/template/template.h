/// Chat templates: the part of Jinja that they use, rendered as Hugging Face's library renders it,
/// with the origin of every byte.
///
/// Accepted  output, if, for with if and else, break, continue, set and set blocks, macros, call
///           and filter blocks, generation, raw, comments, white space control; all operators,
///           slices, tests, filters and methods in functions.h; namespace, range, dict,
///           raise_exception.
/// Refused   by name and line: everything else, when the template is parsed. Unknown filters and
///           tests inside conditional code are refused only when they are reached, as in jinja2.
/// Bounds    see budget.h: a hostile template is stopped; an ordinary one uses at most a hundredth.
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

  /// Whether the template marks generated text with {% generation %}.
  bool has_generation() const { return has_generation_; }

  /// `variables`: messages, tools, add_generation_prompt, bos_token, ... `date`: the date that
  /// strftime_now formats, in UTC. Without it there is no strftime_now, so that the same data give
  /// the same tokens on every day. `used`: the usage of `limits`, also after an error.
  /// Errors   DataError with the line: the message of raise_exception, an error that Python would
  ///          raise, or one of `limits` was reached
  MarkedText render(const Dict& variables, std::optional<std::int64_t> date = {},
                    const Limits& limits = {}, Used* used = nullptr) const;

  /// Renders prefixes of a list of messages at once (growing.h); `variables` doesn't contain the
  /// messages. None if the template accesses its messages in a way that differs between prefixes,
  /// fails, or exceeds `limits` for all prefixes together. A prefix that fails on its own isn't
  /// known.
  std::optional<Beginnings> render_beginnings(const Dict& variables,
                                              const BeginningsRequest& request,
                                              const Limits& limits = {}) const;

 private:
  std::shared_ptr<const TemplateTree> tree_;
  bool has_generation_ = false;
};

}  // namespace sherd::templates
