/// An HTML page in one file: light and dark, without a script, and nothing from the network.
#pragma once

#include <string>
#include <string_view>

namespace sherd::engine {

struct Page {
  std::string_view title;
  std::string_view style;  ///< of this page alone, behind the style of all
  std::string_view body;
};
std::string page(const Page& page);

/// Text as it stands in HTML, also inside of quotes.
std::string escaped(std::string_view text);

/// A table that may be wider than the screen: it scrolls by touch, mouse or keys, and says so where it
/// is likely to be cut off.
std::string scrolling(std::string_view label, std::string_view table);

}  // namespace sherd::engine
