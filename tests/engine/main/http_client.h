/// Enough HTTP to be a client of `sherd serve`: one request for each connection.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace sherd::test {

struct HttpResponse {
  int status = 0;
  std::string head, body;  ///< the body without chunks
};

class Connection {
 public:
  Connection(int port, const std::string& request) : file_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(file_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    for (std::size_t sent = 0; sent < request.size();) {
      const ssize_t count =
          ::send(file_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) break;  // a server that refuses a large body may close first
      sent += static_cast<std::size_t>(count);
    }
  }
  ~Connection() { ::close(file_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Reads until `end` has come, or nothing comes any more.
  std::string read_until(const std::string& end) const {
    std::string text;
    char bytes[4096];
    while (end.empty() || text.find(end) == text.npos) {
      const ssize_t count = ::recv(file_, bytes, sizeof bytes, 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  int file_;
};

class HttpClient {
 public:
  explicit HttpClient(int port) : port_(port) {}
  int port() const { return port_; }

  HttpResponse get(const std::string& path) const { return send("GET", path, "", ""); }
  HttpResponse post(const std::string& path, const std::string& body) const {
    return send("POST", path, kJson, body);
  }
  HttpResponse send(const std::string& method, const std::string& path, const std::string& headers,
                    const std::string& body) const {
    return response(Connection(port_, request(method, path, headers, body)).read_until(""));
  }
  Connection open(const std::string& path, const std::string& body) const {
    return {port_, request("POST", path, kJson, body)};
  }

 private:
  static constexpr const char* kJson = "Content-Type: application/json\r\n";

  static std::string request(const std::string& method, const std::string& path,
                             const std::string& headers, const std::string& body) {
    const bool names_host = headers.find("Host:") != headers.npos;
    const bool says_how_long = headers.find("Transfer-Encoding:") != headers.npos ||
                               headers.find("Content-Length:") != headers.npos;
    const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return method + " " + path + " HTTP/1.1\r\n" + (names_host ? "" : "Host: localhost\r\n") +
           headers + (says_how_long ? "" : length) + "\r\n" + body;
  }

  static HttpResponse response(const std::string& text) {
    HttpResponse response;
    const std::size_t end = text.find("\r\n\r\n");
    if (end == text.npos || !text.starts_with("HTTP/1.1 ")) {
      ADD_FAILURE() << "no response: " << text;
      return response;
    }
    response.status = std::stoi(text.substr(9));
    response.head = text.substr(0, end);
    response.body = text.substr(end + 4);
    if (response.head.find("chunked") != response.head.npos) {
      response.body = without_chunks(response.body);
    }
    return response;
  }

  static std::string without_chunks(const std::string& chunks) {
    std::string body;
    for (std::size_t at = 0; at < chunks.size();) {
      const std::size_t line = chunks.find("\r\n", at);
      if (line == chunks.npos) break;
      const std::size_t size = std::stoul(chunks.substr(at, line - at), nullptr, 16);
      body += chunks.substr(line + 2, size);
      at = line + 2 + size + 2;
    }
    return body;
  }

  int port_;
};

}  // namespace sherd::test
