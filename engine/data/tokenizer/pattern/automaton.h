/// A pattern as a table: the state and the kind of a code point give the next state.
///
/// It finds the match of a backtracking matcher, not the longest match. A state is a list of places
/// in the pattern, in the order in which a backtracking matcher would try them. Places after one
/// where the pattern ends are dropped (R. Cox, Regular Expression Matching in the Wild, 2010:
/// leftmost-first matching). Whether a place is reached may depend on the next code point, so
/// matches and look-aheads are decided one code point late. A possessive repetition of a class is a
/// repetition that no code point of the class may follow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/data/tokenizer/pattern/pattern_parser.h"

namespace sherd::tokenizer {

/// Immutable; any thread may use it.
class Automaton {
 public:
  /// `sets_of_kind[k - 1]`: bit s is set if code points of kind k are in `pattern.sets[s]`. Returns
  /// none, so that PCRE2 must match, if the pattern looks ahead at more than one code point,
  /// repeats something that may be empty, repeats something possessively that isn't a class, or
  /// would need more than 512 states.
  static std::optional<Automaton> make(const ParsedPattern& pattern,
                                       std::span<const std::uint64_t> sets_of_kind);

  static constexpr std::uint8_t kEndOfText = 0;  ///< a kind in addition to those of code points
  static constexpr std::uint32_t kDead = 0;
  static constexpr std::uint32_t kMatched = 0x80000000;

  std::uint32_t start() const { return start_; }
  /// The next state, or kDead; with kMatched if a match ends before the code point (or the end of
  /// the text) whose kind is `kind`.
  std::uint32_t next(std::uint32_t state, std::uint8_t kind) const { return table_[state + kind]; }

 private:
  std::uint32_t start_ = 0;
  std::vector<std::uint32_t> table_;  ///< a state is the index of its row's first element
};

}  // namespace sherd::tokenizer
