/// A pattern as a tree, for matching without PCRE2.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/tokenizer/pattern/pattern_parser.h"

namespace sherd::tokenizer {

struct PatternNode {
  enum class Kind : std::uint8_t {
    kSet,          ///< one code point in `set`
    kSequence,     ///< the children, one after the other
    kAlternative,  ///< the first child that lets the rest match
    kRepeat,       ///< the child, `least` to `most` times
    kNext,         ///< matches nothing; a code point in `set` follows
    kNotNext,      ///< matches nothing; no code point in `set` follows
    kEnd,          ///< matches nothing; the text ends
  };
  enum class Greed : std::uint8_t { kMost, kLeast, kPossessive };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSequence;
  int set = -1;  ///< index into ParsedPattern::sets
  int least = 0;
  int most = kUnbounded;
  Greed greed = Greed::kMost;
  std::vector<PatternNode> children{};
};

/// None if the pattern looks ahead at more than one code point.
std::optional<PatternNode> tree_of(const ParsedPattern& pattern);

}  // namespace sherd::tokenizer
