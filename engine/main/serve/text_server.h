/// A model for HTTP clients: /v1/completions and /v1/chat/completions as OpenAI has them,
/// /v1/models and /health.
///
/// One thread has the model and makes one text at a time (text_jobs.h); connections wait for it.
/// A completion with temperature 0 is what `sherd sample --temperature 0` prints.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/inference/evaluate.h"
#include "engine/main/serve/http_server.h"
#include "engine/main/serve/openai.h"
#include "engine/main/serve/text_jobs.h"

namespace sherd::engine {
class Decoder;
class TextModel;
}  // namespace sherd::engine

namespace sherd::main {

struct TextServerOptions {
  engine::TrainedModelRequest model;
  std::string name;  ///< in /v1/models
  std::string host = "127.0.0.1";
  int port = 8000;
  std::int64_t context = 0;     ///< tokens of prompt and text together; 0: the model's usual
  std::int64_t max_tokens = 0;  ///< of a text; 0: what the context has room for
  std::int64_t max_waiting = 16;
  std::chrono::seconds time_limit{600};  ///< for a text, from its first token
  std::function<void(const std::string& address)> on_begin{};
  std::function<void(const std::string&)> on_note{};
};

/// Serves until Ctrl-C.
/// Errors   Interrupted at Ctrl-C; those of TextModel; UsageError if the address can't be bound, or
///          the context is longer than the model's.
void serve_text(const TextServerOptions& options);

}  // namespace sherd::main
