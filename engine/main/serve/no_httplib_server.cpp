#include "core/error.h"
#include "engine/main/serve/http_server.h"

namespace sherd::main {

class HttpServer::Library {};

HttpServer::HttpServer(const Options&, Handler, Refuse) {
  throw UsageError(
      "this program was built without cpp-httplib, so it can't serve; install libcpp-httplib-dev "
      "and build it again.");
}
HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return 0;
}

void HttpServer::start() {}
void HttpServer::check() const {}

}  // namespace sherd::main
