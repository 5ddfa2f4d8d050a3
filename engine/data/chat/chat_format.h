/// Conversations become tokens, by a model's own chat template; and which of them are trained on.
///
/// An answer's span in the rendered text begins where the prompt for it ends (the conversation before
/// it, with the generation prompt), or sooner with its first byte or a <think> that the prompt opens.
/// It ends with what the template puts behind the answer, such as the special token that ends the
/// turn: where the conversation up to the answer ends, or the whole goes on otherwise; where no special
/// token is there, the one that begins the next turn belongs to it. Templates with {% generation %} say it themselves. Text is cut there and at the template's special
/// tokens before it is encoded: no token lies across an edge, and what is trained on is what a model
/// has to write. Special tokens that somebody spells in a message stay text.
///
/// Some templates rewrite history, such as those that leave out the thinking of earlier answers: an
/// answer then isn't in the whole conversation as it was given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/chat/chat_options.h"
#include "engine/data/chat/conversation.h"
#include "engine/data/template/template.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

struct EncodedConversation {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  ///< 1 where a token is trained on
  bool was_rewritten = false;         ///< so only its last answer is trained on
};

/// Immutable; any thread may use it, each with an encoder of its own.
class ChatFormat {
 public:
  /// `folder` has the tokenizer, and chat_template.jinja or a chat_template in tokenizer_config.json
  /// (of several the one named "default").
  /// Errors   DataError: no template, or one that isn't known here, by its line. A folder without one
  ///          is taken; `encode` then refuses messages.
  ChatFormat(const std::string& folder, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
             const ChatOptions& options);

  /// Errors   DataError, without the conversation's place: what the template raises; with kError a
  ///          rewritten history
  EncodedConversation encode(const Conversation& conversation, tokenizer::Encoder& encoder) const;

  /// What an answer is written behind: the conversation so far, and the template's generation prompt.
  /// Errors   as encode.
  std::vector<std::int32_t> prompt_ids(const Conversation& conversation,
                                       tokenizer::Encoder& encoder) const;
  /// The same as text; `generation_prompt`: with what an answer is written after. Special tokens that a message
  /// spells can't be told from the template's.
  std::string prompt_text(const Conversation& conversation, bool generation_prompt) const;
  /// The special token that the template puts behind an answer. None: other text ends it, or nothing.
  std::optional<std::int32_t> end_of_answer(tokenizer::Encoder& encoder) const;

  /// Bytes [begin, end) of a rendered text.
  struct Span {
    std::size_t begin = 0, end = 0;
    bool operator==(const Span&) const = default;
  };
  struct Rendered {
    templates::MarkedText text;
    std::vector<Span> trained;  ///< in order, apart from one another
    bool was_rewritten = false;
  };
  Rendered render(const Conversation& conversation) const;

 private:
  templates::MarkedText render_messages(const Conversation& conversation, std::size_t count,
                                        bool prompt, std::size_t spoken) const;
  Span span_of_answer(const Conversation& conversation, std::size_t index,
                      templates::MarkedText& with_answer) const;
  std::size_t common_text(const std::string& a, const std::string& b) const;
  std::size_t behind_stop(const templates::MarkedText& text, std::size_t said,
                          std::size_t end) const;
  void mark_answers(const Conversation& conversation, Rendered& rendered) const;
  void mark_generated(Rendered& rendered) const;
  void require_template() const;
  EncodedConversation encode_plain(const Conversation& conversation,
                                   tokenizer::Encoder& encoder) const;

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::string folder_;
  std::unique_ptr<const templates::Template> template_;  ///< null: the folder has none
  ChatOptions options_;
  std::vector<std::string> special_tokens_;
};

}  // namespace sherd::data
