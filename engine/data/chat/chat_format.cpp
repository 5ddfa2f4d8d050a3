#include "engine/data/chat/chat_format.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace sherd::data {
namespace {

using templates::MarkedText;

// Where special tokens may be spelled: whatever didn't come from a message.
std::string trusted_bytes(const MarkedText& text) {
  std::string trusted(text.size(), '\0');
  for (std::size_t i = 0; i < trusted.size(); ++i) {
    trusted[i] = (text.marks[i] & templates::kFromData) == 0 ? '\1' : '\0';
  }
  return trusted;
}

}  // namespace

ChatFormat::ChatFormat(const std::string& folder,
                       std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                       const ChatOptions& options)
    : tokenizer_(std::move(tokenizer)),
      renderer_(folder, tokenizer_->named_tokens(), options.limits),
      options_(options),
      special_tokens_(tokenizer_->special_tokens()) {}

// Some templates end an answer with nothing: then the special token that begins the next turn is
// what a model has to write in order to stop.
std::size_t ChatFormat::after_stop(const MarkedText& text, std::size_t said,
                                   std::size_t end) const {
  std::size_t after = end;
  for (const std::string& token : special_tokens_) {
    if (text.view().substr(said, end - said).find(token) != std::string_view::npos) return end;
    const bool follows = text.bytes.compare(end, token.size(), token) == 0 &&
                         (text.marks[end] & templates::kFromData) == 0;
    if (follows) after = std::max(after, end + token.size());
  }
  return after;
}

void ChatFormat::mark_answers(const Conversation& conversation, Rendered& rendered) const {
  const auto& messages = conversation.messages;
  std::size_t last = messages.size();
  while (last > 0 && !messages[last - 1].is_answer) --last;
  if (last-- == 0) return;
  const std::size_t first = options_.train_on == TrainOn::kLast ? last
                            : options_.train_on == TrainOn::kCompletion
                                ? conversation.num_prompt_messages
                                : 0;
  std::vector<std::size_t> answers;
  for (std::size_t i = first; i < messages.size(); ++i) {
    if (messages[i].is_answer && messages[i].is_trained) answers.push_back(i);
  }
  if (answers.empty()) return;
  AnswerPlaces places(renderer_, conversation, answers, special_tokens_, options_.renderings);
  const SharedText whole(rendered.text);
  std::size_t said_before = 0;  // the end of the previous answer, without the token that stops it
  for (const std::size_t index : answers) {
    auto [with_answer, span] = places.place_of(index);
    if (places.common_bytes(with_answer, whole) >= span.end) {
      if (span.begin < said_before) {
        throw UnfitRow(unfit::kOrder,
                       "the template shows message {} before the end of an earlier answer",
                       index + 1);
      }
      const std::size_t said = said_before = span.end;
      // The token that stopped the previous answer may begin this one.
      if (!rendered.trained.empty()) {
        span.begin = std::max(span.begin, rendered.trained.back().end);
      }
      span.end = std::max({said, span.begin, places.common_text(with_answer, whole)});
      span.end = after_stop(rendered.text, said, span.end);
      rendered.trained.push_back(span);
      continue;
    }
    if (options_.rewritten == RewrittenHistory::kError) {
      throw DataError(
          "the template rewrites message {} when others follow it; set data.rewritten_history to "
          "train_last to train on the last answer of such conversations",
          index + 1);
    }
    // What is generated next is the last answer: the conversation up to it, as the template shows
    // it then.
    rendered.was_rewritten = true;
    const AnswerPlaces::Place place = places.place_of(last);
    rendered.text = place.with.whole();
    rendered.trained.clear();
    if (messages[last].is_trained) {
      rendered.trained = {{place.span.begin, rendered.text.size()}};
    }
    break;
  }
  rendered.num_renderings += places.num_renderings();
}

namespace {

std::vector<Span> generated_spans(const MarkedText& text) {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < text.marks.size(); ++i) {
    if ((text.marks[i] & templates::kGenerated) == 0) continue;
    if (spans.empty() || spans.back().end < i) spans.push_back({i, i});
    spans.back().end = i + 1;
  }
  return spans;
}

}  // namespace

// The text of messages without a loss is marked as spoken here.
void ChatFormat::mark_generated(const Conversation& conversation, Rendered& rendered) const {
  std::size_t in_prompt = 0;
  if (options_.train_on == TrainOn::kCompletion && conversation.num_prompt_messages > 0) {
    const MarkedText prompt =
        renderer_.render(conversation, {.count = conversation.num_prompt_messages});
    in_prompt = generated_spans(prompt).size();
    ++rendered.num_renderings;
  }
  const std::vector<Span> spans = generated_spans(rendered.text);
  const bool one = options_.train_on == TrainOn::kLast;
  for (std::size_t i = one && !spans.empty() ? spans.size() - 1 : in_prompt; i < spans.size();
       ++i) {
    const std::string_view marks =
        std::string_view(rendered.text.marks).substr(spans[i].begin, spans[i].end - spans[i].begin);
    if (std::ranges::none_of(marks, templates::is_spoken)) rendered.trained.push_back(spans[i]);
  }
}

void ChatFormat::mark_all(Rendered& rendered) const {
  const std::string& marks = rendered.text.marks;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (templates::is_spoken(marks[i])) continue;
    if (i == 0 || templates::is_spoken(marks[i - 1])) rendered.trained.push_back({i, i});
    rendered.trained.back().end = i + 1;
  }
}

// A call that isn't in the text would be trained, or continued, as an answer without it.
void ChatFormat::note_unshown(const Conversation& conversation, Rendered& rendered) const {
  unsigned seen = 0;
  for (const char mark : rendered.text.marks) seen |= static_cast<std::uint8_t>(mark);
  const std::string& source = renderer_.template_of(conversation).source;
  for (const WatchedField& field : conversation.watched) {
    const bool shown =
        field.mark != 0 ? (seen & field.mark) != 0 : source.find(field.name) != std::string::npos;
    if (shown) continue;
    if (field.mark == kOfToolCalls) {
      throw UnfitRow(unfit::kToolCalls, "has tool calls, which the template doesn't show");
    }
    rendered.unshown.push_back(field.name);
  }
}

// Messages without a loss are marked as spoken.
MarkedText ChatFormat::render_whole(const Conversation& conversation) const {
  const auto& messages = conversation.messages;
  return renderer_.render(conversation, {.count = messages.size(), .spoken = [&](std::size_t i) {
                                           return !messages[i].is_trained;
                                         }});
}

ChatFormat::Rendered ChatFormat::render(const Conversation& given) const {
  const Conversation conversation = renderer_.adapted(given);
  Rendered rendered;
  if (conversation.messages.empty()) return rendered;
  rendered.text = render_whole(conversation);
  rendered.num_renderings = 1;
  note_unshown(conversation, rendered);
  if (options_.train_on == TrainOn::kAll) {
    mark_all(rendered);
  } else if (renderer_.template_of(conversation).parsed->has_generation()) {
    mark_generated(conversation, rendered);
  } else {
    mark_answers(conversation, rendered);
  }
  return rendered;
}

EncodedConversation ChatFormat::encode_plain(const Conversation& conversation,
                                             tokenizer::Encoder& encoder) const {
  EncodedConversation encoded;
  const auto before = tokenizer_->before_document();
  encoded.ids.assign(before.begin(), before.end());
  encoder.encode(conversation.prompt.view(), tokenizer::SpecialTokens::kAsText, encoded.ids);
  const bool all = options_.train_on == TrainOn::kAll;
  encoded.trained.assign(encoded.ids.size(), all ? 1 : 0);
  const std::string untrusted(conversation.completion.size(), '\0');
  encoder.encode_part(conversation.completion.view(), untrusted, !conversation.prompt.empty(),
                      encoded.ids);
  if (const auto end = tokenizer_->end()) encoded.ids.push_back(*end);
  encoded.trained.resize(encoded.ids.size(), 1);
  return encoded;
}

EncodedConversation ChatFormat::encode(const Conversation& conversation,
                                       tokenizer::Encoder& encoder) const {
  if (conversation.is_plain) return encode_plain(conversation, encoder);
  Rendered rendered = render(conversation);
  EncodedConversation encoded;
  encoded.was_rewritten = rendered.was_rewritten;
  encoded.unshown = std::move(rendered.unshown);
  const std::string trusted = trusted_bytes(rendered.text);
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool is_trained) {
    if (end <= at) return;
    encoder.encode_part(rendered.text.view().substr(at, end - at),
                        std::string_view(trusted).substr(at, end - at), at > 0, encoded.ids);
    encoded.trained.resize(encoded.ids.size(), is_trained ? 1 : 0);
    at = end;
  };
  for (const Span& span : rendered.trained) {
    add(span.begin, false);
    add(span.end, true);
  }
  add(rendered.text.size(), false);
  return encoded;
}

std::vector<std::int32_t> ChatFormat::prompt_ids(const Conversation& conversation,
                                                 tokenizer::Encoder& encoder) const {
  const Conversation adapted = renderer_.adapted(conversation);
  Rendered rendered;
  rendered.text = renderer_.render(adapted, {.count = adapted.messages.size(), .prompt = true});
  note_unshown(adapted, rendered);
  std::vector<std::int32_t> ids;
  encoder.encode_part(rendered.text.view(), trusted_bytes(rendered.text), false, ids);
  return ids;
}

std::string ChatFormat::prompt_text(const Conversation& conversation,
                                    bool generation_prompt) const {
  const Conversation adapted = renderer_.adapted(conversation);
  return renderer_.render(adapted, {.count = adapted.messages.size(), .prompt = generation_prompt})
      .bytes;
}

std::optional<std::int32_t> ChatFormat::end_of_answer(tokenizer::Encoder& encoder) const {
  const EncodedConversation said = encode(
      read_conversation(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "7"}]})"),
      encoder);
  // Templates may write special tokens before the answer's text, too.
  std::optional<std::int32_t> end;
  for (std::size_t i = 0; i < said.ids.size(); ++i) {
    const std::string_view token = tokenizer_->token_of(said.ids[i]);
    const bool is_special = std::ranges::find(special_tokens_, token) != special_tokens_.end();
    if (said.trained[i] == 0) continue;
    if (is_special && !end) end = said.ids[i];
    if (!is_special && token.find('7') != std::string_view::npos) end.reset();
  }
  return end;
}

}  // namespace sherd::data
