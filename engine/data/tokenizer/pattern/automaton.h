/// A pattern as a table: state and kind of code point give the next state.
///
/// It finds what a backtracking matcher finds, not the longest match: a state is a list of places in
/// the pattern in the order in which a backtracking matcher would try them, and what comes behind a
/// place where the pattern ends is dropped (R. Cox, Regular Expression Matching in the Wild, 2010:
/// leftmost-first matching). Whether a place is reached may depend on the next code point, so matches
/// and looks ahead are decided one code point later than they are met. Possessive repetitions of a
/// class are repetitions that none of the class may follow.
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
  /// `sets_of_kind[k - 1]`: bit s says that code points of kind k are in `pattern.sets[s]`.
  /// None, and PCRE2 has to do it, if the pattern looks ahead at more than one code point, repeats
  /// what may be empty, is possessive and more than a class, or if the table had
  /// above 512 states.
  static std::optional<Automaton> make(const ParsedPattern& pattern,
                                       std::span<const std::uint64_t> sets_of_kind);

  static constexpr std::uint8_t kEndOfText = 0;  ///< a kind beside those of code points
  static constexpr std::uint32_t kDead = 0;
  static constexpr std::uint32_t kMatched = 0x80000000;

  std::uint32_t start() const { return start_; }
  /// The next state, or kDead; with kMatched if a match ends in front of the code point (or of the end
  /// of the text) that `kind` is of.
  std::uint32_t next(std::uint32_t state, std::uint8_t kind) const { return table_[state + kind]; }

 private:
  std::uint32_t start_ = 0;
  std::vector<std::uint32_t> table_;  ///< a state is where its row begins
};

}  // namespace sherd::tokenizer
