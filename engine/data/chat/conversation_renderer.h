/// Renders a conversation, or its first messages, with the chat template that applies to it.
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
  /// `named` become variables in templates, as in transformers; tokens without a name are
  /// undefined.
  /// Errors   DataError: see template_set.h
  ConversationRenderer(const std::string& folder, const std::vector<tokenizer::NamedToken>& named,
                       const templates::Limits& limits = {});

  /// The conversation in the form that its template accepts (template_habits.h).
  /// Errors   DataError: no template. UnfitRow
  Conversation adapted(const Conversation& conversation) const;

  struct Request {
    std::size_t count = 0;  ///< render this many messages from the first
    bool prompt = false;    ///< append the generation prompt
    /// Which messages are marked as spoken; if empty, none.
    std::function<bool(std::size_t index)> spoken{};
  };
  /// Errors   UnfitRow: the template raised an error
  templates::MarkedText render(const Conversation& conversation, const Request& request) const;

  /// Prefixes of the conversation with the wanted numbers of messages. The last message of each is
  /// marked as spoken. None if the template can't render all of them at once.
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
  templates::Limits limits_;
  TemplateSet templates_;
  std::vector<std::pair<std::string, TemplateHabits>> habits_;  ///< by the template's name
};

}  // namespace sherd::data
