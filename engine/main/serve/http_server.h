/// An HTTP server: requests in, replies out. The library is cpp-httplib (httplib_server.cpp); in a
/// build without it, the constructor says so (no_httplib_server.cpp).
///
/// Each connection has one request. A client that sends or reads nothing for 5 s is cut off; ending
/// waits for clients until then.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sherd::main {

struct HttpRequest {
  std::string method, path, body;
  std::string content_type, host;  ///< of the header; empty: missing
};

struct HttpReply {
  int status = 200;
  std::string body{};
  /// Instead of `body`: writes it piece by piece, on the connection's thread. `write` returns false
  /// and `is_open` is false if the client is gone. Returning false cuts the connection.
  using Write = std::function<bool(std::string_view)>;
  using IsOpen = std::function<bool()>;
  std::function<bool(const Write& write, const IsOpen& is_open)> stream{};
  std::string content_type = "application/json";
};

class HttpServer {
 public:
  struct Options {
    std::string host;
    int port = 0;  ///< 0: any free one
    std::size_t most_body_bytes = 0;
    int num_threads = 0;  ///< requests at a time
  };
  /// Called on several threads at a time; must not throw. A request that isn't HTTP, or has a body
  /// that is too large, compressed or without Content-Length, never gets there: `refuse` makes its
  /// reply.
  using Handler = std::function<HttpReply(const HttpRequest&)>;
  using Refuse = std::function<HttpReply(int status)>;

  /// Binds; clients wait until `start`.
  /// Errors   UsageError if the address can't be bound, or the build has no cpp-httplib.
  HttpServer(const Options& options, Handler handler, Refuse refuse);
  /// Ends it, after the replies that are being written.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  void start();
  /// Errors   the library's, if it can't serve any more.
  void check() const;

 private:
  class Library;
  std::unique_ptr<Library> library_;
};

}  // namespace sherd::main
