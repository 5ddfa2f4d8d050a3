/// Changes text before it is split into words: a list of steps, each applied to the whole piece.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/data/tokenizer/normal_form.h"
#include "engine/data/tokenizer/pattern/split_pattern.h"

namespace sherd::tokenizer {

/// The largest output of a tokenizer's step: kMostGrowth times the bytes of the text, plus
/// kMostAdded. Unicode's normal forms grow text at most 11 times, a mark for spaces 3 times.
inline constexpr std::size_t kMostGrowth = 32;
inline constexpr std::size_t kMostAdded = 4096;

struct ToNormalForm {
  NormalForm form;
};
struct Prepend {
  std::string text;  ///< put before text that isn't empty
};
struct ReplaceText {
  std::string from;  ///< not empty
  std::string to;
};
struct ReplacePattern {
  SplitPattern from;
  std::string to;
};
/// Where a piece of text is. Steps that put something before words do so unless it is joined.
enum class Place : std::uint8_t {
  kStart,   ///< at the beginning of the document
  kInside,  ///< a piece of its own, as after an added token
  kJoined   ///< it goes on with the text before it, which was encoded apart
};

using NormalizerStep = std::variant<ToNormalForm, Prepend, ReplaceText, ReplacePattern>;

/// Immutable; any thread may call.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool changes_nothing() const { return steps_.empty(); }
  /// Memory that is reused from one text to the next.
  struct Scratch {
    std::string text, other;
  };
  /// `text` is UTF-8, and so is the result. The result is in `scratch`, or is `text`.
  /// Errors   DataError: a step's output is larger than kMostGrowth and kMostAdded allow
  std::string_view apply(std::string_view text, Scratch& scratch,
                         Place place = Place::kStart) const;
  std::string apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sherd::tokenizer
