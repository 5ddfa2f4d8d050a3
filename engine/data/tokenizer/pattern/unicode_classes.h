/// Sets of code points, and the classes of Unicode 16.0 that tokenizers name in their patterns.
///
/// Sherd has its own tables (general_category.inc), since Hugging Face's tokenizers use Unicode
/// 16.0, which the regular expression libraries of Debian 12 don't support.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace sherd::tokenizer {

inline constexpr char32_t kLastCodePoint = 0x10ffff;

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;  ///< inclusive
  bool operator==(const CodePointRange&) const = default;
};

/// Immutable: sorted ranges that neither overlap nor touch.
class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(std::vector<CodePointRange> ranges);  ///< in any order, may overlap

  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool contains(char32_t point) const;
  CodePointSet complement() const;
  CodePointSet operator|(const CodePointSet& other) const;
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

/// `name`: a general category such as "Lu", or the common first letter of several such as "L".
std::optional<CodePointSet> general_category(std::string_view name);
const CodePointSet& white_space();      ///< the property White_Space, `\s`
const CodePointSet& word_characters();  ///< `\w` of Unicode Technical Standard 18

}  // namespace sherd::tokenizer
