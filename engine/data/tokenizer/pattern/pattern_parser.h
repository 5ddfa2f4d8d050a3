/// Parses the regular expressions of tokenizer files: the part of Oniguruma's Ruby dialect that
/// means the same in PCRE2. Everything that could mean something else there is refused by name.
///
///   accepted  literals, escapes of punctuation, \n \r \t \s \S \d \p{..} \P{..}, [classes], `.`,
///             alternatives, (groups), (?:..), (?i:..), (?=..), (?!..), $ (the end of a line),
///             * + ? {n,m} and the lazy and possessive forms of * + ?
///   refused   \h \w \b, ^, look-behind, options for the rest of the pattern, `&&` and classes
///             inside classes, {n,m}+ (possessive to PCRE2, not to Oniguruma), scripts such as
///             \p{Han}, back references
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/pattern/unicode_classes.h"

namespace sherd::tokenizer {

/// Syntax, then a code point in `sets[set]` (if set >= 0).
struct PatternPart {
  std::string syntax;
  int set = -1;
};

struct ParsedPattern {
  std::vector<PatternPart> parts;
  std::vector<CodePointSet> sets;  ///< distinct, at most 64
};

/// Errors   DataError naming `where` and what is refused.
ParsedPattern parse_pattern(std::string_view pattern, std::string_view where);
/// A pattern that matches only `text`.
ParsedPattern literal_pattern(std::string_view text, std::string_view where);

}  // namespace sherd::tokenizer
