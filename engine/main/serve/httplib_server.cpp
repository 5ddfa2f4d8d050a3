#include <httplib.h>

#include <atomic>
#include <charconv>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/thread.h"
#include "engine/main/serve/http_server.h"

namespace sherd::main {

class HttpServer::Library {
 public:
  Library(const Options& options, Handler handler, Refuse refuse)
      : handler_(std::move(handler)), refuse_(std::move(refuse)) {
    server_.new_task_queue = [threads = options.num_threads] {
      return new httplib::ThreadPool(static_cast<std::size_t>(threads));  // httplib deletes it
    };
    // httplib's own options let two programs share a port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_keep_alive_max_count(1);
    server_.set_tcp_nodelay(true);
    server_.set_payload_max_length(options.most_body_bytes);
    // Called before a body is read.
    server_.set_pre_routing_handler(
        [this, most = options.most_body_bytes](const httplib::Request& request,
                                               httplib::Response& response) {
          const int status = refusal_of_body(request, most);
          if (status == 0) return httplib::Server::HandlerResponse::Unhandled;
          send(refuse_(status), response);
          return httplib::Server::HandlerResponse::Handled;
        });
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      send(handler_({request.method, request.path, request.body,
                     request.get_header_value("Content-Type"), request.get_header_value("Host")}),
           response);
    };
    server_.Get(".*", answer);
    server_.Post(".*", answer);
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      send(refuse_(response.status), response);
    });
    port_ = options.port == 0 ? server_.bind_to_any_port(options.host)
            : server_.bind_to_port(options.host, options.port) ? options.port
                                                               : -1;
    if (port_ < 0) {
      throw UsageError("{}:{}: can't be bound; is another program there? Try --port.", options.host,
                       options.port);
    }
  }

  ~Library() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  int port() const { return port_; }

  void start() {
    thread_ = start_thread("that waits for clients", [this] { listen(); });
    // stop() before that does nothing
    while (!server_.is_running() && !has_ended_) std::this_thread::yield();
  }

  void check() const {
    if (has_ended_) throw std::runtime_error("the HTTP server has ended: " + why_);
  }

 private:
  // The status for a body that isn't read; 0: none. httplib knows a body's size only from its
  // Content-Length, and reads what is too large to the end, so that the client sees the reply.
  static int refusal_of_body(const httplib::Request& request, std::size_t most) {
    constexpr std::size_t kMostThatIsSkipped = 16;  // times `most`
    if (request.has_header("Transfer-Encoding")) return 411;
    if (request.has_header("Content-Encoding")) return 415;
    if (!request.has_header("Content-Length")) {
      const bool has_body = request.method != "GET" && request.method != "HEAD";
      return has_body ? 411 : 0;
    }
    const std::string length = request.get_header_value("Content-Length");
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (error != std::errc() || end != length.data() + length.size()) return 400;
    return bytes > kMostThatIsSkipped * most ? 413 : 0;
  }

  // An exception would end the program. It also ends if the system can't accept a connection.
  void listen() {
    try {
      server_.listen_after_bind();
      why_ = "no connection can be accepted any more";
    } catch (const std::exception& error) {
      why_ = error.what();
    }
    has_ended_ = true;
  }

  static void send(HttpReply reply, httplib::Response& response) {
    response.status = reply.status;
    if (!reply.stream) {
      response.set_content(reply.body, reply.content_type);
      return;
    }
    response.set_chunked_content_provider(
        reply.content_type,
        [stream = std::move(reply.stream)](std::size_t, httplib::DataSink& sink) {
          const auto write = [&](std::string_view text) {
            return sink.write(text.data(), text.size());
          };
          if (!stream(write, sink.is_writable)) return false;
          sink.done();
          return true;
        });
  }

  const Handler handler_;
  const Refuse refuse_;
  httplib::Server server_;
  int port_ = -1;
  std::string why_;  // written before has_ended_
  std::atomic<bool> has_ended_ = false;
  std::thread thread_;
};

HttpServer::HttpServer(const Options& options, Handler handler, Refuse refuse)
    : library_(std::make_unique<Library>(options, std::move(handler), std::move(refuse))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return library_->port();
}

void HttpServer::start() {
  library_->start();
}

void HttpServer::check() const {
  library_->check();
}

}  // namespace sherd::main
