#include "engine/data/chat/answer_places.h"

#include <algorithm>

namespace sherd::data {
namespace {

using templates::MarkedText;

constexpr std::size_t kFewAnswers = 2;  // of which three renderings each are no more work

}  // namespace

AnswerPlaces::AnswerPlaces(const ConversationRenderer& renderer, const Conversation& conversation,
                           const std::vector<std::size_t>& answers,
                           const std::vector<std::string>& special_tokens, Renderings how)
    : renderer_(renderer), conversation_(conversation), special_tokens_(special_tokens) {
  const bool together = how == Renderings::kAllTogether ||
                        (how == Renderings::kFewest && answers.size() > kFewAnswers);
  if (together) render_together(answers);
}

void AnswerPlaces::render_together(const std::vector<std::size_t>& answers) {
  std::vector<bool> plain(conversation_.messages.size() + 1), prompted(plain.size());
  for (const std::size_t index : answers) {
    plain[index] = plain[index + 1] = prompted[index] = true;
  }
  plain_ = pass(plain, false);
  if (plain_) prompted_ = pass(prompted, true);
}

std::optional<AnswerPlaces::Pass> AnswerPlaces::pass(const std::vector<bool>& wanted, bool prompt) {
  ++num_renderings_;
  std::optional<templates::Beginnings> all =
      renderer_.render_beginnings(conversation_, wanted, prompt);
  if (!all) return std::nullopt;
  return Pass{std::make_shared<const MarkedText>(std::move(all->shared)), std::move(all->of_count)};
}

SharedText AnswerPlaces::text(std::size_t count, bool prompt, std::optional<std::size_t> spoken) {
  const std::optional<Pass>& together = prompt ? prompted_ : plain_;
  if (together && together->of_count[count].is_known) {
    const auto& one = together->of_count[count];
    return {together->shared, one.shared_bytes, one.tail};
  }
  ++num_renderings_;
  ConversationRenderer::Request request{.count = count, .prompt = prompt};
  if (spoken) request.spoken = [&](std::size_t i) { return i == *spoken; };
  return SharedText(renderer_.render(conversation_, request));
}

AnswerPlaces::Place AnswerPlaces::place_of(std::size_t index) {
  Place place{.with = text(index + 1, false, index), .span = {}};
  const SharedText before = text(index, false, std::nullopt);
  const SharedText prompt = text(index, true, std::nullopt);
  const std::string& marks = place.with.tail().marks;
  const auto first = std::find_if(marks.begin(), marks.end(), templates::is_spoken);
  const auto last = std::find_if(marks.rbegin(), marks.rend(), templates::is_spoken);
  const std::size_t shared = place.with.shared_bytes();
  const bool says_something = first != marks.end();
  Span& span = place.span;
  span.begin = std::min(common_text(prompt, place.with),
                        shared + static_cast<std::size_t>(first - marks.begin()));
  // A prompt may open the thinking that the answer is to begin with.
  span.begin = std::min(span.begin, place.with.find("<think>", common_text(before, place.with)));
  span.end = says_something ? shared + static_cast<std::size_t>(marks.rend() - last) : span.begin;
  return place;
}

std::size_t AnswerPlaces::common_text(const SharedText& a, const SharedText& b) {
  std::size_t common = common_(a, b);
  for (const std::string& token : special_tokens_) {
    const std::size_t most = std::min(common, token.size() - 1);
    for (std::size_t begin = common - most; begin < common; ++begin) {
      if (a.has(begin, token) || b.has(begin, token)) {
        common = begin;
        break;
      }
    }
  }
  return common;
}

}  // namespace sherd::data
