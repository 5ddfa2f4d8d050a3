/// JSON that somebody broke.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace sherd::test {

/// `text` with one to four edits at places from `first` on: a byte changed, some cut out, some doubled, a word
/// of JSON put in or in their place.
std::string mutated_text(const std::string& text, std::size_t first, std::mt19937& draw);

}  // namespace sherd::test
