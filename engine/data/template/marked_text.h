/// Text with the origin of every byte. So a special token spelled by a user stays text, and an
/// assistant's words can be found in a rendered conversation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/data/template/budget.h"

namespace sherd::templates {

/// Bits of a byte's mark; 0: the template itself.
enum Mark : std::uint8_t {
  kFromData = 1,       ///< from the conversation, which isn't trusted
  kSpoken = 2,         ///< from the message that is searched for
  kGenerated = 4,      ///< between {% generation %} and {% endgeneration %}
  kFirstOfCaller = 8,  ///< this bit and higher ones: defined by the caller
};

inline bool is_spoken(char mark) {
  return (mark & kSpoken) != 0;
}

struct MarkedText {
  MarkedText() = default;
  explicit MarkedText(std::string text, std::uint8_t mark = 0)
      : bytes(std::move(text)), marks(bytes.size(), static_cast<char>(mark)) {}

  std::string bytes;
  std::string marks;     ///< one per byte
  bool is_safe = false;  ///< from the filter `safe`: text added to it would be escaped

  std::size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  std::string_view view() const { return bytes; }
  MarkedText part(std::size_t first, std::size_t count = std::string::npos) const {
    MarkedText result;
    count_text(std::min(count, size() - std::min(first, size())));
    result.bytes = bytes.substr(first, count);
    result.marks = marks.substr(first, count);
    return result;
  }
  void append(const MarkedText& other) {
    grow(other.size());
    bytes += other.bytes;
    marks += other.marks;
  }
  void append(std::string_view text, std::uint8_t mark) {
    grow(text.size());
    bytes += text;
    marks.append(text.size(), static_cast<char>(mark));
  }

 private:
  void grow(std::size_t count) const {
    count_text(count);
    expect_text(size() + count);
  }
};

}  // namespace sherd::templates
