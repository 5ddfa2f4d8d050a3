#include "tests/support/random/mutated_text.h"

#include <vector>

namespace sherd::test {

std::string mutated_text(const std::string& text, std::size_t first, std::mt19937& draw) {
  static const std::vector<std::string> kWords = {
      "null", "true",     "-1",     "1e99", "\"\"",
      "[]",   "{}",       "\\u",    "[[",   "}}",
      "(?:",  "{1,9999}", "\\\\p{", "[^",   "18446744073709551616",
      "+"};
  std::string result = text;
  for (unsigned edit = 0; edit <= draw() % 4 && result.size() > first; ++edit) {
    const std::size_t place = first + draw() % (result.size() - first);
    const std::size_t length = 1 + draw() % 12;
    switch (draw() % 5) {
      case 0:
        result[place] = static_cast<char>(draw());
        break;
      case 1:
        result.erase(place, length);
        break;
      case 2:
        result.insert(place, result.substr(draw() % result.size(), length));
        break;
      case 3:
        result.insert(place, kWords[draw() % kWords.size()]);
        break;
      default:
        result.replace(place, length, kWords[draw() % kWords.size()]);
    }
  }
  return result;
}

}  // namespace sherd::test
