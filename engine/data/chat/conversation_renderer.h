/// Renders a conversation, or its beginning, with the chat template that it gets.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/chat/conversation.h"
#include "engine/data/chat/template_habits.h"
#include "engine/data/chat/template_set.h"
#include "engine/data/tokenizer/named_tokens.h"

namespace sherd::data {

/// Immutable; any thread may use it.
class ConversationRenderer {
 public:
  /// `named` are variables in templates, as in transformers: those that aren't named are undefined.
  /// Errors   DataError: see template_set.h
  ConversationRenderer(const std::string& folder, const std::vector<tokenizer::NamedToken>& named);

  /// The conversation in the way that its template knows (template_habits.h).
  /// Errors   DataError: no template. UnfitRow
  Conversation adapted(const Conversation& conversation) const;

  struct Request {
    std::size_t count = 0;  ///< the first messages
    bool prompt = false;    ///< with the generation prompt
    /// Which messages are marked as spoken; none if it is empty.
    std::function<bool(std::size_t index)> spoken{};
  };
  /// Errors   UnfitRow: what the template raises
  templates::MarkedText render(const Conversation& conversation, const Request& request) const;

  /// Its beginnings with the wanted numbers of messages, the last message of each marked as spoken; none if
  /// the template can't be rendered for all of them at once.
  std::optional<templates::Beginnings> render_beginnings(const Conversation& conversation,
                                                         const std::vector<bool>& wanted,
                                                         bool prompt) const;

  const NamedTemplate& template_of(const Conversation& conversation) const {
    return templates_.for_conversation(!conversation.tools.is_none());
  }

 private:
  templates::Dict variables_of(const Conversation& conversation, bool prompt) const;
  templates::MarkedText render(const NamedTemplate& with, std::vector<templates::Value> messages,
                               const Conversation& of, bool prompt) const;

  std::vector<tokenizer::NamedToken> named_;
  TemplateSet templates_;
  std::vector<std::pair<std::string, TemplateHabits>> habits_;  ///< by the template's name
};

}  // namespace sherd::data
