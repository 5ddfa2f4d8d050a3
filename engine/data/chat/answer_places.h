/// Finds the answers in a rendered conversation (chat_format.h defines an answer's span).
///
/// Three renderings locate an answer: the conversation before the answer, the same with the
/// generation prompt, and the conversation up to and including the answer. If the template can
/// render all prefixes at once (template/growing.h), time is linear in the text. Otherwise each
/// answer needs three renderings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/chat/chat_options.h"
#include "engine/data/chat/conversation_renderer.h"
#include "engine/data/chat/shared_text.h"

namespace sherd::data {

/// Bytes [begin, end) of a rendered text.
struct Span {
  std::size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

class AnswerPlaces {
 public:
  /// `answers`: indices of the messages to find, in order. `special_tokens` are never split.
  AnswerPlaces(const ConversationRenderer& renderer, const Conversation& conversation,
               const std::vector<std::size_t>& answers,
               const std::vector<std::string>& special_tokens,
               Renderings how = Renderings::kFewest);

  /// The answer's bytes in `with`, the conversation up to and including the answer.
  struct Place {
    SharedText with;
    Span span;
  };
  /// Errors   UnfitRow: the template raised an error
  Place place_of(std::size_t index);

  /// Length of the common prefix of two texts; it never ends inside a special token.
  std::size_t common_text(const SharedText& a, const SharedText& b);
  /// Length of the common prefix of two texts, in bytes.
  std::size_t common_bytes(const SharedText& a, const SharedText& b) { return common_(a, b); }

  /// Renderings of the template so far; rendering all prefixes at once counts as two.
  int num_renderings() const { return num_renderings_; }

 private:
  struct Pass {
    std::shared_ptr<const templates::MarkedText> shared;
    std::vector<templates::Beginnings::One> of_count;
  };
  void render_together(const std::vector<std::size_t>& answers);
  std::optional<Pass> pass(const std::vector<bool>& wanted, bool prompt);
  SharedText text(std::size_t count, bool prompt, std::optional<std::size_t> spoken);

  const ConversationRenderer& renderer_;
  const Conversation& conversation_;
  const std::vector<std::string>& special_tokens_;
  CommonPrefix common_;
  std::optional<Pass> plain_, prompted_;
  int num_renderings_ = 0;
};

}  // namespace sherd::data
