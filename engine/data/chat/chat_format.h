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
///
/// A message whose weight is 0 has no loss. Fields with text that the template shows nowhere are named in
/// `unshown`; a tool call that it doesn't show makes the row unfit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/chat/answer_places.h"
#include "engine/data/chat/chat_options.h"
#include "engine/data/chat/conversation.h"
#include "engine/data/chat/conversation_renderer.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

struct EncodedConversation {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  ///< 1 where a token is trained on
  bool was_rewritten = false;         ///< so only its last answer is trained on
  std::vector<std::string> unshown;   ///< fields of the row that the template doesn't show
};

/// Immutable; any thread may use it, each with an encoder of its own.
class ChatFormat {
 public:
  /// `folder` has the tokenizer and its templates (template_set.h).
  /// Errors   DataError: a template that isn't known here, by its line. A folder without one is taken;
  ///          `encode` then refuses messages.
  ChatFormat(const std::string& folder, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
             const ChatOptions& options);

  /// Errors   UnfitRow: what the template raises. DataError, without the conversation's place: no
  ///          template; with kError a rewritten history
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

  struct Rendered {
    templates::MarkedText text;
    std::vector<Span> trained;  ///< in order, apart from one another
    bool was_rewritten = false;
    std::vector<std::string> unshown;
    int num_renderings = 0;  ///< of the template
  };
  Rendered render(const Conversation& conversation) const;

 private:
  templates::MarkedText render_whole(const Conversation& conversation) const;
  std::size_t behind_stop(const templates::MarkedText& text, std::size_t said,
                          std::size_t end) const;
  void mark_answers(const Conversation& conversation, Rendered& rendered) const;
  void mark_generated(Rendered& rendered) const;
  void mark_all(Rendered& rendered) const;
  void note_unshown(const Conversation& conversation, Rendered& rendered) const;
  EncodedConversation encode_plain(const Conversation& conversation,
                                   tokenizer::Encoder& encoder) const;

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  ConversationRenderer renderer_;
  ChatOptions options_;
  std::vector<std::string> special_tokens_;
};

}  // namespace sherd::data
