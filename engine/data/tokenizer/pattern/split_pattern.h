/// Finds the matches of a tokenizer's regular expression in UTF-8 text.
///
/// A pattern distinguishes code points only by the classes it names: some 20 kinds. Matching works
/// on kinds, so the classes are exactly our Unicode 16.0 tables, whatever their size, at no cost in
/// matching. Patterns that look ahead at most one code point (as in all known families) become a
/// table (automaton.h). For others, text is written as one byte per code point, its kind, and PCRE2
/// matches these bytes. Tests check that both find the same matches. Steps are counted, so that
/// endless backtracking stops after the same number of steps on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/pattern/pattern_parser.h"

namespace sherd::tokenizer {

/// Immutable; any thread may scan with it.
class SplitPattern {
 public:
  enum class Matcher : std::uint8_t { kBest, kPcre2 };

  /// Errors   DataError: refused (pattern_parser.h), or it can match the empty string.
  SplitPattern(const ParsedPattern& parsed, std::string_view where,
               Matcher matcher = Matcher::kBest);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;

  /// Whether a table matches, not PCRE2.
  bool is_table() const;

  /// Scratch memory of one thread; used by one scan at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    struct State;
    std::unique_ptr<State> state;
  };

  /// Matches in order, not overlapping and not empty.
  class Scan {
   public:
    /// `text` is UTF-8 and must outlive the scan.
    Scan(const SplitPattern& pattern, Scratch& scratch, std::string_view text);
    /// Returns false if there are no more matches. Otherwise the match is the bytes [begin, end).
    /// Errors   DataError if the pattern backtracks too much.
    bool next(std::size_t& begin, std::size_t& end);

   private:
    bool next_of_table(std::size_t& begin, std::size_t& end);
    [[noreturn]] void backtracks_too_much() const;
    bool next_of_pcre2(std::size_t& begin, std::size_t& end);
    int match_with_pcre2();
    void spend(std::size_t steps);
    void write_kinds();
    std::size_t byte_of(std::size_t character);
    const SplitPattern& pattern_;
    Scratch& scratch_;
    std::string_view text_;
    std::size_t next_byte_ = 0;  ///< for the table's matcher; the rest is for PCRE2
    bool is_ascii_ = true;
    std::size_t next_character_ = 0;
    std::size_t known_character_ = 0;  ///< begins at known_byte_
    std::size_t known_byte_ = 0;
    std::int64_t steps_ = 0;  ///< of matches that exceeded the first limit
  };

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace sherd::tokenizer
