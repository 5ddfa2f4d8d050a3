/// Finds the matches of a tokenizer's regular expression in UTF-8 text.
///
/// A pattern tells code points apart only by the classes it names: some 20 kinds. Text is written as
/// one byte per code point, its kind, and PCRE2 (compiled to machine code) matches the kinds. So the
/// classes are exactly our Unicode 16.0 tables, and their size costs nothing while matching.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/pattern/pattern_parser.h"

namespace sherd::tokenizer {

/// Immutable; any thread may scan with it.
class SplitPattern {
 public:
  /// Errors   DataError: refused (pattern_parser.h), or it can match nothing at all.
  SplitPattern(const ParsedPattern& parsed, std::string_view where);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;

  /// What one thread needs beside the pattern; to be used by one scan at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    struct State;
    std::unique_ptr<State> state;
  };

  /// Matches in order, none overlapping another, none empty.
  class Scan {
   public:
    /// `text` is UTF-8 and outlives the scan.
    Scan(const SplitPattern& pattern, Scratch& scratch, std::string_view text);
    /// False: no more. Otherwise a match is the bytes [begin, end).
    /// Errors   DataError if a pattern backtracks without end.
    bool next(std::size_t& begin, std::size_t& end);

   private:
    std::size_t byte_of(std::size_t character);
    const SplitPattern& pattern_;
    Scratch& scratch_;
    std::string_view text_;
    bool is_ascii_ = true;
    std::size_t next_character_ = 0;
    std::size_t known_character_ = 0;  ///< begins at known_byte_
    std::size_t known_byte_ = 0;
  };

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace sherd::tokenizer
