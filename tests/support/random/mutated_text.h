/// Damaged JSON.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace sherd::test {

/// `text` with one to four random edits at or after `first`: a byte is changed, bytes are removed
/// or duplicated, a JSON word is inserted or replaces them.
std::string mutated_text(const std::string& text, std::size_t first, std::mt19937& draw);

}  // namespace sherd::test
