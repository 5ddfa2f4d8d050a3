#include <nlohmann/json.hpp>

#include "engine/main/serve/openai.h"

namespace sherd::main {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string event(const Json& json) {
  return "data: " + text_of(json) + "\n\n";
}

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

const char* finish_reason(const engine::GeneratedText& text) {
  return text.end == engine::GeneratedText::End::kLength ? "length" : "stop";
}

Json usage(const engine::GeneratedText& text) {
  return {{"prompt_tokens", text.prompt_tokens},
          {"completion_tokens", text.num_tokens},
          {"total_tokens", text.prompt_tokens + text.num_tokens}};
}

Json head(const Reply& reply, const char* chat_object, Json choices) {
  return {{"id", reply.id},
          {"object", reply.is_chat ? chat_object : "text_completion"},
          {"created", reply.created},
          {"model", reply.model},
          {"choices", std::move(choices)}};
}

// A list of one: braces around one object would be a copy of it.
Json choice(Json content) {
  content["index"] = 0;
  content["logprobs"] = nullptr;
  if (!content.contains("finish_reason")) content["finish_reason"] = nullptr;
  Json list = Json::array();
  list.push_back(std::move(content));
  return list;
}

Json chunk(const Reply& reply, Json content) {
  return head(reply, "chat.completion.chunk", choice(std::move(content)));
}

Json model_json(const std::string& model, std::int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "sherd"}};
}

}  // namespace

HttpReply error_reply(const ApiError& error) {
  const char* type = error.status == 429   ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  return {.status = error.status,
          .body = text_of({{"error",
                            {{"message", error.what()},
                             {"type", type},
                             {"param", or_null(error.param)},
                             {"code", or_null(error.code)}}}})};
}

std::string Reply::whole(const engine::GeneratedText& text) const {
  Json content;
  if (is_chat) {
    content["message"] = {{"role", "assistant"}, {"content", text.text}};
  } else {
    content["text"] = text.text;
  }
  content["finish_reason"] = finish_reason(text);
  Json json = head(*this, "chat.completion", choice(std::move(content)));
  json["usage"] = usage(text);
  return text_of(json);
}

std::string Reply::begin() const {
  if (!is_chat) return {};
  return event(chunk(*this, {{"delta", {{"role", "assistant"}, {"content", ""}}}}));
}

std::string Reply::piece(std::string_view text) const {
  if (is_chat) return event(chunk(*this, {{"delta", {{"content", text}}}}));
  return event(chunk(*this, {{"text", text}}));
}

std::string Reply::end(const engine::GeneratedText& text, bool includes_usage) const {
  Json content{{"finish_reason", finish_reason(text)}};
  if (is_chat) {
    content["delta"] = Json::object();
  } else {
    content["text"] = "";
  }
  std::string events = event(chunk(*this, std::move(content)));
  if (includes_usage) {
    Json json = head(*this, "chat.completion.chunk", Json::array());
    json["usage"] = usage(text);
    events += event(json);
  }
  return events + "data: [DONE]\n\n";
}

std::string models_text(const std::string& model, std::int64_t created) {
  Json list = Json::array();
  list.push_back(model_json(model, created));
  return text_of({{"object", "list"}, {"data", std::move(list)}});
}

std::string model_text(const std::string& model, std::int64_t created) {
  return text_of(model_json(model, created));
}

}  // namespace sherd::main
