/// Where answers stand in a rendered conversation (chat_format.h says what an answer's span is).
///
/// Each is found by what the template makes of the conversation up to the answer, with it, and up to it with
/// the generation prompt. Time is in proportion to the text where the template can be rendered for all
/// beginnings at once (templates/growing.h); else three renderings for each answer are needed.
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
  /// `answers`: indices of the messages to find, in order. `special_tokens` aren't cut.
  AnswerPlaces(const ConversationRenderer& renderer, const Conversation& conversation,
               const std::vector<std::size_t>& answers,
               const std::vector<std::string>& special_tokens,
               Renderings how = Renderings::kFewest);

  /// The answer's bytes in `with`: the conversation up to and with it.
  struct Place {
    SharedText with;
    Span span;
  };
  /// Errors   UnfitRow: what the template raises
  Place place_of(std::size_t index);

  /// Where two texts part, but not inside of a special token that one of them spells.
  std::size_t common_text(const SharedText& a, const SharedText& b);
  /// How far `with` is in `whole` as it stands there, in bytes.
  std::size_t common_bytes(const SharedText& a, const SharedText& b) { return common_(a, b); }

  /// Renderings of the template so far; all beginnings at once are two.
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
