/// What happens to text before it is cut into words: a list of changes, each to the whole piece.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/data/tokenizer/normal_form.h"
#include "engine/data/tokenizer/pattern/split_pattern.h"

namespace sherd::tokenizer {

/// What a tokenizer may make of a text, at any of its steps: so many times its bytes, and so many more. Unicode's own
/// forms make 11 times as many at most, a mark for spaces 3.
inline constexpr std::size_t kMostGrowth = 32;
inline constexpr std::size_t kMostAdded = 4096;

struct ToNormalForm {
  NormalForm form;
};
struct Prepend {
  std::string text;  ///< in front of what isn't empty
};
struct ReplaceText {
  std::string from;  ///< not empty
  std::string to;
};
struct ReplacePattern {
  SplitPattern from;
  std::string to;
};
using NormalizerStep = std::variant<ToNormalForm, Prepend, ReplaceText, ReplacePattern>;

/// Immutable; any thread may call.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool changes_nothing() const { return steps_.empty(); }
  /// Memory that is used again from one text to the next.
  struct Scratch {
    std::string text, other;
  };
  /// `text` is UTF-8, and so is the result. It stands in `scratch`, or is `text`.
  /// Errors   DataError: a step makes more than kMostGrowth and kMostAdded allow
  std::string_view apply(std::string_view text, Scratch& scratch) const;
  std::string apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sherd::tokenizer
