#include "engine/data/chat/chat_format.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"
#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::MarkedText;
using templates::Value;
using Json = nlohmann::json;

std::optional<std::string> read_if_there(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  constexpr std::int64_t kMostBytes = 16 << 20;
  return read_small_file(path, kMostBytes);
}

std::optional<std::string> template_in_config(const std::string& path) {
  const auto text = read_if_there(path);
  if (!text) return std::nullopt;
  check_json_bounds(*text, path);
  const Json config = Json::parse(*text, nullptr, false);
  if (!config.is_object()) throw DataError("{}: isn't a JSON object.", path);
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& one : *found) {
      const bool fits = one.is_object() && one.contains("name") && one.contains("template") &&
                        one["template"].is_string();
      if (fits && one["name"] == "default") return one["template"].get<std::string>();
    }
  }
  throw DataError("{}: its chat_template is neither a text nor a list with one named \"default\".",
                  path);
}

std::unique_ptr<const templates::Template> open_template(const std::string& folder) {
  std::string path = folder + "/chat_template.jinja";
  auto source = read_if_there(path);
  if (!source) {
    path = folder + "/tokenizer_config.json";
    source = template_in_config(path);
  }
  if (!source) return nullptr;
  return std::make_unique<const templates::Template>(templates::Template::parse(*source, path));
}

std::size_t common_prefix(const std::string& a, const std::string& b) {
  const auto size = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(size), b.begin()).first -
      a.begin());
}

// Where special tokens may be spelled: whatever didn't come from a message.
std::string trusted_bytes(const MarkedText& text) {
  std::string trusted(text.size(), '\0');
  for (std::size_t i = 0; i < trusted.size(); ++i) {
    trusted[i] = (text.marks[i] & templates::kFromData) == 0 ? '\1' : '\0';
  }
  return trusted;
}

bool is_spoken(char mark) {
  return (mark & templates::kSpoken) != 0;
}

}  // namespace

ChatFormat::ChatFormat(const std::string& folder,
                       std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                       const ChatOptions& options)
    : tokenizer_(std::move(tokenizer)),
      folder_(folder),
      template_(open_template(folder)),
      options_(options),
      special_tokens_(tokenizer_->special_tokens()) {}

// The first `count` messages; those of message `spoken` are marked.
MarkedText ChatFormat::render_messages(const Conversation& conversation, std::size_t count,
                                       bool prompt, std::size_t spoken) const {
  std::vector<Value> messages;
  for (std::size_t i = 0; i < count; ++i) {
    const Value& fields = conversation.messages[i].fields;
    if (i != spoken) {
      messages.push_back(fields);
      continue;
    }
    auto marked = std::make_shared<Dict>();
    for (const auto& [key, value] : fields.dict()->items) {
      const bool is_role = key.text()->bytes == "role";
      marked->items.emplace_back(key,
                                 is_role ? value : templates::with_mark(value, templates::kSpoken));
    }
    messages.emplace_back(marked);
  }
  Dict variables;
  const auto put = [&](const char* name, Value value) {
    variables.set(Value::text(name), std::move(value));
  };
  const auto token = [&](std::optional<std::int32_t> id) {
    return Value::text(id ? std::string(tokenizer_->token_of(*id)) : "");
  };
  put("messages", Value::list(std::move(messages)));
  put("tools", conversation.tools);
  put("documents", templates::None{});
  put("add_generation_prompt", prompt);
  put("bos_token", token(tokenizer_->beginning()));
  put("eos_token", token(tokenizer_->end()));
  return template_->render(variables);
}

// Where two texts part, but not inside of a special token that one of them spells.
std::size_t ChatFormat::common_text(const std::string& a, const std::string& b) const {
  std::size_t common = common_prefix(a, b);
  for (const std::string& token : special_tokens_) {
    const std::size_t most = std::min(common, token.size() - 1);
    for (std::size_t begin = common - most; begin < common; ++begin) {
      if (a.compare(begin, token.size(), token) == 0 ||
          b.compare(begin, token.size(), token) == 0) {
        common = begin;
        break;
      }
    }
  }
  return common;
}

// The answer's bytes as the template shows them in `with_answer`, the conversation up to it.
ChatFormat::Span ChatFormat::span_of_answer(const Conversation& conversation, std::size_t index,
                                            MarkedText& with_answer) const {
  with_answer = render_messages(conversation, index + 1, false, index);
  const std::string before = render_messages(conversation, index, false, index).bytes;
  const std::string prompt = render_messages(conversation, index, true, index).bytes;
  const auto& marks = with_answer.marks;
  const auto first = std::find_if(marks.begin(), marks.end(), is_spoken);
  const auto last = std::find_if(marks.rbegin(), marks.rend(), is_spoken);
  Span span;
  span.begin = std::min(common_text(prompt, with_answer.bytes),
                        static_cast<std::size_t>(first - marks.begin()));
  // A prompt may open the thinking that the answer is to begin with.
  const std::size_t thinking =
      with_answer.bytes.find("<think>", common_text(before, with_answer.bytes));
  span.begin = std::min(span.begin, thinking);
  const bool says_something = first != marks.end();
  span.end = says_something ? static_cast<std::size_t>(marks.rend() - last) : span.begin;
  return span;
}

// Some templates end an answer with nothing: then the special token that begins the next turn is what a
// model has to write in order to stop.
std::size_t ChatFormat::behind_stop(const MarkedText& text, std::size_t said,
                                    std::size_t end) const {
  std::size_t behind = end;
  for (const std::string& token : special_tokens_) {
    if (text.view().substr(said, end - said).find(token) != std::string_view::npos) return end;
    const bool follows = text.bytes.compare(end, token.size(), token) == 0 &&
                         (text.marks[end] & templates::kFromData) == 0;
    if (follows) behind = std::max(behind, end + token.size());
  }
  return behind;
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
  for (std::size_t i = first; i < messages.size(); ++i) {
    if (!messages[i].is_answer) continue;
    MarkedText with_answer;
    Span span = span_of_answer(conversation, i, with_answer);
    if (rendered.text.bytes.compare(0, span.end, with_answer.bytes, 0, span.end) == 0) {
      const std::size_t said = span.end;
      span.end = std::max(said, common_text(with_answer.bytes, rendered.text.bytes));
      span.end = behind_stop(rendered.text, said, span.end);
      rendered.trained.push_back(span);
      continue;
    }
    if (options_.rewritten == RewrittenHistory::kError) {
      throw DataError(
          "the template rewrites message {} when others follow it; set data.rewritten_history to "
          "train_last to train on the last answer of such conversations",
          i + 1);
    }
    // What is generated next is the last answer: the conversation up to it, as the template shows it then.
    rendered.was_rewritten = true;
    const std::size_t begin = span_of_answer(conversation, last, with_answer).begin;
    rendered.text = std::move(with_answer);
    rendered.trained = {{begin, rendered.text.size()}};
    return;
  }
}

void ChatFormat::mark_generated(Rendered& rendered) const {
  const std::string& marks = rendered.text.marks;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if ((marks[i] & templates::kGenerated) == 0) continue;
    if (i == 0 || (marks[i - 1] & templates::kGenerated) == 0) rendered.trained.push_back({i, i});
    rendered.trained.back().end = i + 1;
  }
  const bool one = options_.train_on == TrainOn::kLast || options_.train_on == TrainOn::kCompletion;
  if (one && rendered.trained.size() > 1) rendered.trained = {rendered.trained.back()};
}

void ChatFormat::require_template() const {
  if (template_) return;
  throw DataError(
      "{} has no chat_template.jinja, and its tokenizer_config.json no chat_template, which "
      "messages need",
      folder_);
}

ChatFormat::Rendered ChatFormat::render(const Conversation& conversation) const {
  require_template();
  Rendered rendered;
  if (conversation.messages.empty()) return rendered;
  rendered.text = render_messages(conversation, conversation.messages.size(), false,
                                  conversation.messages.size());
  if (options_.train_on == TrainOn::kAll) {
    rendered.trained = {{0, rendered.text.size()}};
  } else if (template_->has_generation()) {
    mark_generated(rendered);
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
  const Rendered rendered = render(conversation);
  EncodedConversation encoded;
  encoded.was_rewritten = rendered.was_rewritten;
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
  require_template();
  const std::size_t count = conversation.messages.size();
  const MarkedText text = render_messages(conversation, count, true, count);
  std::vector<std::int32_t> ids;
  encoder.encode_part(text.view(), trusted_bytes(text), false, ids);
  return ids;
}

std::string ChatFormat::prompt_text(const Conversation& conversation,
                                    bool generation_prompt) const {
  require_template();
  const std::size_t count = conversation.messages.size();
  return render_messages(conversation, count, generation_prompt, count).bytes;
}

std::optional<std::int32_t> ChatFormat::end_of_answer(tokenizer::Encoder& encoder) const {
  const EncodedConversation said = encode(
      read_conversation(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
      encoder);
  for (std::size_t i = 0; i < said.ids.size(); ++i) {
    const bool is_special = std::ranges::find(special_tokens_, tokenizer_->token_of(said.ids[i])) !=
                            special_tokens_.end();
    if (said.trained[i] != 0 && is_special) return said.ids[i];
  }
  return std::nullopt;
}

}  // namespace sherd::data
