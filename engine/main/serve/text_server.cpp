#include "engine/main/serve/text_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "core/error.h"
#include "engine/data/chat/chat_format.h"
#include "engine/inference/text_model.h"
#include "engine/launch/stop_signals.h"

namespace sherd::main {
namespace {

constexpr std::size_t kMostBodyBytes = std::size_t{4} << 20;
constexpr int kThreadsForShortReplies = 4;
constexpr std::int64_t kTokensOfACompletion = 16;  // OpenAI's default
constexpr const char* kEnding = "while serving";

// Of a request that HttpServer refuses.
const char* why_refused(int status) {
  switch (status) {
    case 411:
      return "the request needs a Content-Length; chunked bodies aren't read.";
    case 413:
      return "the request is larger than 4 MiB.";
    case 415:
      return "compressed bodies aren't read.";
    default:
      return "not a request.";
  }
}

// The chat template, or why there is none.
class ChatPrompts {
 public:
  explicit ChatPrompts(const engine::TextModel& model) {
    if (model.tokenizer_folder().empty()) return;
    try {
      tokenizer_ = tokenizer::Tokenizer::open(model.tokenizer_folder(), model.added_tokens());
      encoder_.emplace(tokenizer_);
      format_.emplace(model.tokenizer_folder(), tokenizer_, data::ChatOptions{});
      end_of_answer_ = format_->end_of_answer(*encoder_);
    } catch (const DataError& error) {
      format_.reset();
      problem_ = error.what();
    }
  }

  std::vector<std::int32_t> ids(const std::string& conversation) {
    if (!format_) throw ApiError(400, problem_, "messages");
    return format_->prompt_ids(data::read_conversation(conversation), *encoder_);
  }
  const std::optional<std::int32_t>& end_of_answer() const { return end_of_answer_; }

 private:
  std::string problem_ = "this model has no chat template; use /v1/completions.";
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<tokenizer::Encoder> encoder_;
  std::optional<data::ChatFormat> format_;
  std::optional<std::int32_t> end_of_answer_;
};

class TextServer {
 public:
  explicit TextServer(const TextServerOptions& options);
  void run();

 private:
  HttpReply handle(const HttpRequest& request);
  HttpReply route(const HttpRequest& request);
  HttpReply answer(TextQuery query);
  std::vector<std::int32_t> prompt_of(const TextQuery& query);
  engine::GenerationOptions generation_of(const TextQuery& query, std::int64_t num_prompt_tokens);
  void check_host(const std::string& host) const;
  void work(engine::Decoder& decoder);
  void generate(TextJob& job, engine::Decoder& decoder);

  const TextServerOptions& options_;
  engine::TextModel model_;
  std::mutex encoding_;  // one encoder, many connections
  ChatPrompts chat_;
  std::int64_t context_;
  std::int64_t vocab_size_ = 0;
  const std::int64_t began_ = std::time(nullptr);
  std::atomic<std::uint64_t> num_requests_ = 0, num_seeds_ = 0;
  TextJobs jobs_;
  HttpServer http_;  // last: its threads use the rest
};

TextServer::TextServer(const TextServerOptions& options)
    : options_(options),
      model_(options.model),
      chat_(model_),
      context_(model_.context_of(options.context)),
      jobs_(options.max_waiting),
      http_(
          {.host = options.host,
           .port = options.port,
           .most_body_bytes = kMostBodyBytes,
           .num_threads = static_cast<int>(options.max_waiting) + 1 + kThreadsForShortReplies},
          [this](const HttpRequest& request) { return handle(request); },
          [](int status) { return error_reply(ApiError(status, why_refused(status))); }) {}

// A page in a browser may send requests to this machine under a name of its own.
void TextServer::check_host(const std::string& host) const {
  if (options_.host != "127.0.0.1" && options_.host != "localhost") return;
  const std::string name = host.substr(0, host.rfind(':'));
  if (host.empty() || name == "127.0.0.1" || name == "localhost") return;
  throw ApiError(403, "this server answers only to localhost; --host changes that.");
}

HttpReply TextServer::handle(const HttpRequest& request) {
  try {
    check_host(request.host);
    return route(request);
  } catch (const ApiError& error) {
    return error_reply(error);
  } catch (const data::UnfitRow& error) {
    return error_reply(ApiError(400, error.what(), "messages"));
  } catch (const Error& error) {  // what the tokenizer or the template refuses
    return error_reply(ApiError(400, error.what()));
  } catch (const std::exception& error) {
    return error_reply(ApiError(500, error.what()));
  }
}

HttpReply TextServer::route(const HttpRequest& request) {
  const bool is_completion = request.path == "/v1/completions";
  const bool is_chat = request.path == "/v1/chat/completions";
  if (is_completion || is_chat) {
    if (request.method != "POST") throw ApiError(405, "expected POST.");
    if (!request.content_type.starts_with("application/json")) {
      throw ApiError(415, "expected Content-Type: application/json.");
    }
    return answer(read_query(request.body, is_chat));
  }
  if (request.method == "GET") {
    if (request.path == "/health") return {.body = R"({"status":"ok"})"};
    if (request.path == "/v1/models") return {.body = models_text(options_.name, began_)};
    if (request.path == "/v1/models/" + options_.name) {
      return {.body = model_text(options_.name, began_)};
    }
  }
  throw ApiError(404, fmt::format("{} {}: there is nothing.", request.method, request.path));
}

std::vector<std::int32_t> TextServer::prompt_of(const TextQuery& query) {
  if (query.ids) {
    for (const std::int32_t id : *query.ids) {
      if (id >= vocab_size_) {
        throw ApiError(400, fmt::format("prompt: token {}; the model has {}.", id, vocab_size_),
                       "prompt");
      }
    }
    return *query.ids;
  }
  const std::lock_guard lock(encoding_);
  return query.is_chat ? chat_.ids(query.conversation) : model_.prompt_ids(query.prompt);
}

engine::GenerationOptions TextServer::generation_of(const TextQuery& query,
                                                    std::int64_t num_prompt_tokens) {
  const std::int64_t room = context_ - num_prompt_tokens;
  const std::int64_t limit = options_.max_tokens > 0 ? options_.max_tokens : context_;
  const std::int64_t wanted = query.max_tokens.value_or(
      std::min(limit, query.is_chat ? std::max<std::int64_t>(room, 1) : kTokensOfACompletion));
  if (wanted > limit) {
    throw ApiError(400,
                   fmt::format("max_tokens is {}; this server makes at most {}.", wanted, limit),
                   "max_tokens");
  }
  if (wanted > room) {
    throw ApiError(400,
                   fmt::format("the prompt has {} tokens, and the text may have {}: together more "
                               "than the context, {}.",
                               num_prompt_tokens, wanted, context_),
                   query.is_chat ? "messages" : "prompt", "context_length_exceeded");
  }
  engine::GenerationOptions generation{
      .sampling = {.num_tokens = wanted,
                   .temperature = query.temperature,
                   .top_k = query.top_k,
                   .top_p = query.top_p,
                   .seed = query.seed ? *query.seed : num_seeds_++},
      .stops = query.stops,
      .for_terminal = false};
  if (query.is_chat && chat_.end_of_answer()) {
    generation.end_tokens.push_back(*chat_.end_of_answer());
  }
  return generation;
}

// Passes a job's text on to its client.
bool send_stream(TextJob& job, const Reply& reply, bool includes_usage,
                 const HttpReply::Write& write, const HttpReply::IsOpen& is_open) {
  bool is_read = write(reply.begin());
  for (std::string pieces; is_read;) {
    const TextJob::State state = job.wait(pieces);
    if (!pieces.empty()) is_read = write(reply.piece(pieces));
    if (state == TextJob::State::kFailed) return false;
    if (state == TextJob::State::kFinished) return write(reply.end(job.text(), includes_usage));
    is_read = is_read && is_open();
  }
  job.cancel();
  return false;
}

bool send_whole(TextJob& job, const Reply& reply, const HttpReply::Write& write,
                const HttpReply::IsOpen& is_open) {
  for (std::string pieces;;) {
    const TextJob::State state = job.wait(pieces);
    if (state == TextJob::State::kFailed) return false;
    if (state == TextJob::State::kFinished) return write(reply.whole(job.text()));
    if (!is_open()) break;
  }
  job.cancel();
  return false;
}

// A text is needed as long as somebody may read it.
struct Client {
  explicit Client(std::shared_ptr<TextJob> of) : job(std::move(of)) {}
  ~Client() { job->cancel(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::shared_ptr<TextJob> job;
};

HttpReply TextServer::answer(TextQuery query) {
  if (!query.model.empty() && query.model != options_.name) {
    throw ApiError(404,
                   fmt::format("there is no model \"{}\"; this is {}.", query.model, options_.name),
                   "model", "model_not_found");
  }
  std::vector<std::int32_t> prompt = prompt_of(query);
  engine::GenerationOptions generation = generation_of(query, std::ssize(prompt));
  const auto job = std::make_shared<TextJob>(std::move(prompt), std::move(generation));
  const Reply reply{
      .is_chat = query.is_chat,
      .id = fmt::format("{}-{}-{}", query.is_chat ? "chatcmpl" : "cmpl", began_, num_requests_++),
      .model = options_.name,
      .created = std::time(nullptr)};
  switch (jobs_.add(job)) {
    case TextJobs::Added::kFull:
      throw ApiError(
          429, fmt::format("{} requests wait already; try again later.", options_.max_waiting));
    case TextJobs::Added::kClosed:
      throw ApiError(503, "this server is ending.");
    case TextJobs::Added::kYes:
      break;
  }
  // The library may drop the stream without a call, when the client has gone.
  const auto client = std::make_shared<Client>(job);
  HttpReply sent;
  if (query.streams) {
    sent.content_type = "text/event-stream";
    sent.stream = [client, reply, usage = query.includes_usage](const auto& write,
                                                                const auto& is_open) {
      return send_stream(*client->job, reply, usage, write, is_open);
    };
  } else {
    sent.stream = [client, reply](const auto& write, const auto& is_open) {
      return send_whole(*client->job, reply, write, is_open);
    };
  }
  return sent;
}

void TextServer::generate(TextJob& job, engine::Decoder& decoder) {
  engine::GenerationOptions options = job.options;
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> end;
  options.wants_more = [&] {
    if (!end) end = Clock::now() + options_.time_limit;
    return !job.is_cancelled() && Clock::now() < *end;
  };
  job.finish(engine::generate_text(model_, decoder, job.prompt, options,
                                   [&](std::string_view piece) { job.add(piece); }));
}

void TextServer::work(engine::Decoder& decoder) {
  vocab_size_ = decoder.vocab_size();
  engine::end_if_asked(kEnding);  // while weights were loaded
  http_.start();
  if (options_.on_begin) {
    const bool is_ipv6 = options_.host.find(':') != std::string::npos;
    const std::string host = is_ipv6 ? fmt::format("[{}]", options_.host) : options_.host;
    options_.on_begin(fmt::format("http://{}:{}/v1", host, http_.port()));
  }
  try {
    while (true) {
      engine::end_if_asked(kEnding);
      http_.check();
      const std::shared_ptr<TextJob> job = jobs_.take();
      if (job && !job->is_cancelled()) generate(*job, decoder);
    }
  } catch (...) {
    jobs_.close();
    throw;
  }
}

void TextServer::run() {
  model_.run(
      context_, [&](const sharding::Rank&, engine::Decoder& decoder) { work(decoder); },
      options_.on_note);
}

}  // namespace

void serve_text(const TextServerOptions& options) {
  TextServer server(options);
  server.run();
}

}  // namespace sherd::main
