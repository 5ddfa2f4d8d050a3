/// Splits normalised text into words; the model never joins words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/pattern/split_pattern.h"

namespace sherd::tokenizer {

/// What happens to matches and to the text between them ("a" and "b" in "a-b" split at "-").
enum class SplitBehavior : std::uint8_t {
  kRemoved,         ///< a b
  kIsolated,        ///< a - b
  kMergedPrevious,  ///< a- b
  kMergedNext,      ///< a -b
  kContiguous,      ///< a - b, and adjacent matches are one part
};

struct SplitStep {
  SplitPattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< swap the roles of the matches and the text between them
};
/// Adds a space before a piece that doesn't begin with one.
struct PrefixSpaceStep {};
/// Spaces become `replacement`. If `split`, the text is split before each of them.
struct MetaspaceStep {
  enum class Prepend : std::uint8_t { kNever, kFirst, kAlways };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
/// Bytes become the characters that spell them (byte_alphabet.h) for the following steps. Words are
/// still returned as bytes.
struct SpellBytesStep {};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep, SpellBytesStep>;

/// Immutable; each thread runs it with its own scratch.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& pre_tokenizer);

   private:
    friend class PreTokenizer;
    struct Part {
      std::size_t begin;
      std::size_t end;
      bool is_match;
    };
    struct Step {
      SplitPattern::Scratch match;
      std::vector<Part> parts;
      std::string text;
    };
    std::vector<Step> steps_;
    std::string word_;
  };

  /// Calls `on_word` for the words in order. `place`: of `piece`; further
  /// pieces of it are kInside.
  void split(std::string_view piece, Place place, Scratch& scratch,
             const std::function<void(std::string_view)>& on_word) const;

 private:
  struct Call;
  void run(const Call& call, std::size_t step, std::string_view piece, Place place) const;
  void run(const Call& call, std::size_t step, const SplitStep& kind, std::string_view piece,
           Place place) const;
  void run(const Call& call, std::size_t step, const PrefixSpaceStep& kind, std::string_view piece,
           Place place) const;
  void run(const Call& call, std::size_t step, const MetaspaceStep& kind, std::string_view piece,
           Place place) const;
  void run(const Call& call, std::size_t step, const SpellBytesStep& kind, std::string_view piece,
           Place place) const;
  static void merge_parts(SplitBehavior behavior, std::vector<Scratch::Part>& parts);

  std::vector<PreTokenizerStep> steps_;
  bool spells_bytes_ = false;
};

}  // namespace sherd::tokenizer
