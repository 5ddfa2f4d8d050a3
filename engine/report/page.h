/// An HTML page in one file: light and dark, without a script, and nothing from the network.
#pragma once

#include <string>
#include <string_view>

namespace sherd::engine {

struct Page {
  std::string_view title;
  std::string_view style;  ///< of this page alone, after the common style
  std::string_view body;
};
std::string page(const Page& page);

/// Text escaped for HTML, also inside quotes.
std::string escaped(std::string_view text);

/// A table that may be wider than the screen. It scrolls by touch, mouse or keys, with a hint where
/// it is likely to be cut off.
std::string scrolling(std::string_view label, std::string_view table);

}  // namespace sherd::engine
