/// Encodes conversations with the model's chat template, and selects the tokens that are trained
/// on.
///
/// An answer's span in the rendered text begins where its prompt ends: the conversation before it,
/// with the generation prompt. It begins earlier if the answer's first byte, or a <think> that the
/// prompt opens, comes earlier. The span includes what the template writes after the answer, such
/// as the special token that ends the turn. It ends where the rendering up to the answer ends, or
/// where the whole conversation's rendering differs from it. Without such a special token, the span
/// includes the special token that begins the next turn. Templates with {% generation %} mark the
/// spans themselves.
///
/// Text is cut at the edges of spans and at the template's special tokens before it is encoded. So
/// no token crosses an edge, and exactly the text that a model has to write is trained on. A
/// special token spelled in a message stays text.
///
/// Some templates rewrite history; for example, they remove the thinking of earlier answers. The
/// rendered conversation then doesn't contain such an answer as it was given.
///
/// A message with weight 0 has no loss. `unshown` names fields with text that the template never
/// shows. A tool call that the template doesn't show makes the row unfit.
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
  bool was_rewritten = false;         ///< if so, only its last answer is trained on
  std::vector<std::string> unshown;   ///< fields of the row that the template doesn't show
};

/// Immutable; any thread may use it, each with its own encoder.
class ChatFormat {
 public:
  /// `folder` has the tokenizer and its templates (template_set.h).
  /// Errors   DataError: an unsupported template; the message names the line. A folder without a
  ///          template is accepted; `encode` then refuses messages.
  ChatFormat(const std::string& folder, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
             const ChatOptions& options);

  /// Errors   UnfitRow: the template raised an error. DataError, without the conversation's place:
  ///          no template; a rewritten history with kError
  EncodedConversation encode(const Conversation& conversation, tokenizer::Encoder& encoder) const;

  /// The prompt for an answer: the conversation so far, then the template's generation prompt.
  /// Errors   as encode.
  std::vector<std::int32_t> prompt_ids(const Conversation& conversation,
                                       tokenizer::Encoder& encoder) const;
  /// The same as text. `generation_prompt`: whether to append the generation prompt. In this text,
  /// special tokens spelled in a message look like the template's.
  std::string prompt_text(const Conversation& conversation, bool generation_prompt) const;
  /// The special token that the template writes after an answer. None: other text or nothing ends
  /// it.
  std::optional<std::int32_t> end_of_answer(tokenizer::Encoder& encoder) const;

  struct Rendered {
    templates::MarkedText text;
    std::vector<Span> trained;  ///< in order, disjoint
    bool was_rewritten = false;
    std::vector<std::string> unshown;
    int num_renderings = 0;  ///< of the template
  };
  Rendered render(const Conversation& conversation) const;

 private:
  templates::MarkedText render_whole(const Conversation& conversation) const;
  std::size_t after_stop(const templates::MarkedText& text, std::size_t said,
                         std::size_t end) const;
  void mark_answers(const Conversation& conversation, Rendered& rendered) const;
  void mark_generated(const Conversation& conversation, Rendered& rendered) const;
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
