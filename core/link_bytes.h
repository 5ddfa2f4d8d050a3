/// Bytes by the link that they cross: between ranks of one machine, or to another machine.
#pragma once

#include <cstdint>

namespace sherd {

struct LinkBytes {
  std::int64_t within = 0, across = 0;

  std::int64_t total() const { return within + across; }
  LinkBytes& operator+=(const LinkBytes& more) {
    within += more.within;
    across += more.across;
    return *this;
  }
  LinkBytes operator-(const LinkBytes& less) const {
    return {within - less.within, across - less.across};
  }
  bool operator==(const LinkBytes&) const = default;
};

}  // namespace sherd
