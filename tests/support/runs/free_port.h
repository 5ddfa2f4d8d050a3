/// A port of the loopback address that was free a moment ago.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sherd::test {

inline int free_port() {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(file, generic, size), 0);
  EXPECT_EQ(::getsockname(file, generic, &size), 0);
  ::close(file);
  return ntohs(address.sin_port);
}

}  // namespace sherd::test
