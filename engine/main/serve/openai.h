/// Requests and replies in the shape of OpenAI's HTTP interface, as JSON text.
///
/// Source   OpenAI's API reference, "Completions" and "Chat completions". What this server can't do
///          is refused with the name of the parameter; a parameter is never ignored, except `user`
///          and `metadata`, which don't change the text.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/inference/generation.h"
#include "engine/main/serve/http_server.h"

namespace sherd::main {

/// A request that isn't answered with text.
struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string parameter = {},
           std::string error_code = {})
      : std::runtime_error(message),
        status(http_status),
        param(std::move(parameter)),
        code(std::move(error_code)) {}

  int status;
  std::string param, code;  ///< empty: null
};
HttpReply error_reply(const ApiError& error);

struct TextQuery {
  bool is_chat = false;
  std::string model{};                             ///< empty: none named
  std::string prompt{};                            ///< of a completion
  std::optional<std::vector<std::int32_t>> ids{};  ///< the same as tokens
  std::string conversation{};                      ///< of a chat: {"messages": [...]}
  std::optional<std::int64_t> max_tokens{};
  double temperature = 1.0, top_p = 1.0;
  std::int64_t top_k = 0;  ///< not OpenAI's, but other servers have it
  std::optional<std::uint64_t> seed{};
  std::vector<std::string> stops{};
  bool streams = false, includes_usage = false;
};

/// Errors   ApiError with status 400, which names the parameter.
TextQuery read_query(const std::string& body, bool is_chat);

/// What all replies to one request share.
struct Reply {
  bool is_chat = false;
  std::string id, model;
  std::int64_t created = 0;  ///< seconds since 1970

  std::string whole(const engine::GeneratedText& text) const;
  /// Events of a stream: "data: {...}\n\n".
  std::string begin() const;  ///< empty for a completion
  std::string piece(std::string_view text) const;
  /// The finish reason, the usage if asked for, and the end of the stream.
  std::string end(const engine::GeneratedText& text, bool includes_usage) const;
};

std::string models_text(const std::string& model, std::int64_t created);
std::string model_text(const std::string& model, std::int64_t created);

}  // namespace sherd::main
