#include "engine/inference/chat.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/data/chat/chat_format.h"
#include "engine/data/token_text.h"
#include "engine/inference/text_model.h"
#include "engine/launch/stop_signals.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

std::shared_ptr<const tokenizer::Tokenizer> tokenizer_of(const TextModel& model) {
  if (model.tokenizer_folder().empty()) {
    throw DataError(
        "this model has no tokenizer, so no chat template; `sherd sample` continues texts.");
  }
  return tokenizer::Tokenizer::open(model.tokenizer_folder(), model.added_tokens());
}

class Chat {
 public:
  Chat(const ChatRequest& request, const TextModel& model)
      : request_(request),
        options_(request.options),
        model_(model),
        tokenizer_(tokenizer_of(model)),
        format_(model.tokenizer_folder(), tokenizer_, {}),
        encoder_(tokenizer_) {
    options_.for_terminal = false;  // the conversation goes on with what the model wrote
    if (const auto end = format_.end_of_answer(encoder_)) options_.end_tokens.push_back(*end);
    if (!request.system.empty()) messages_.push_back(message("system", request.system));
    first_turn_ = messages_.size();
  }

  void run(Decoder& decoder) {
    if (request_.on_begin) request_.on_begin();
    while (const std::optional<std::string> said = request_.next_message()) {
      messages_.push_back(message("user", *said));
      messages_.push_back(message("assistant", answer(decoder)));
    }
  }

 private:
  static json message(const char* role, const std::string& content) {
    return {{"role", role}, {"content", content}};
  }

  std::vector<std::int32_t> prompt() {
    const json line = {{"messages", messages_}};
    return format_.prompt_ids(
        data::read_conversation(line.dump(-1, ' ', false, json::error_handler_t::replace)),
        encoder_);
  }

  // With room for an answer after it.
  std::vector<std::int32_t> fitting_prompt(std::int64_t context) {
    const std::int64_t room = context - options_.sampling.num_tokens;
    std::vector<std::int32_t> ids = prompt();
    std::int64_t forgotten = 0;
    while (std::ssize(ids) > room && messages_.size() > first_turn_ + 2) {
      const auto oldest = messages_.begin() + static_cast<std::ptrdiff_t>(first_turn_);
      messages_.erase(oldest, oldest + 2);
      ++forgotten;
      ids = prompt();
    }
    if (std::ssize(ids) > room) {
      throw UsageError(
          "the message has {} tokens with its template, and an answer may have {}: together more "
          "than the model's {}. Ask for shorter answers (--tokens).",
          ids.size(), options_.sampling.num_tokens, context);
    }
    if (forgotten > 0 && request_.on_note) {
      request_.on_note(fmt::format(
          "the oldest {} dropped: the model reads {} tokens.",
          forgotten == 1 ? "turn is" : fmt::format("{} turns are", forgotten), context));
    }
    return ids;
  }

  std::string answer(Decoder& decoder) {
    const std::vector<std::int32_t> ids = fitting_prompt(decoder.context());
    install_stop_handlers();  // what was asked for before is forgotten
    std::string said;
    try {
      const GeneratedText text =
          generate_text(model_, decoder, ids, options_, [&](std::string_view piece) {
            said += piece;
            if (!request_.on_text) return;
            request_.options.for_terminal ? request_.on_text(data::terminal_text(piece))
                                          : request_.on_text(piece);
          });
      if (request_.on_answer) request_.on_answer(&text);
    } catch (const Interrupted&) {
      if (request_.on_answer) request_.on_answer(nullptr);
    }
    return said;
  }

  const ChatRequest& request_;
  GenerationOptions options_;
  const TextModel& model_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  data::ChatFormat format_;
  tokenizer::Encoder encoder_;
  std::vector<json> messages_;
  std::size_t first_turn_ = 0;
};

}  // namespace

void chat(const ChatRequest& request) {
  TextModel model(request.model);
  Chat chat(request, model);
  model.run(
      model.context_of(request.context),
      [&](const sharding::Rank&, Decoder& decoder) { chat.run(decoder); }, request.on_note);
}

}  // namespace sherd::engine
