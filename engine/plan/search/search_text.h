/// Times and speeds, as a search prints them.
#pragma once

#include <string>

namespace sherd::engine {

std::string seconds_text(double seconds);  ///< "11.4 s", "83.0 ms"
std::string tokens_text(double per_s);     ///< "91.6k tokens/s"

}  // namespace sherd::engine
