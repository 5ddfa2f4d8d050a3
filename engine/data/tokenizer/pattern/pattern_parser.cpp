#include "engine/data/tokenizer/pattern/pattern_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

constexpr std::size_t kMaxLength = 16384;
constexpr std::size_t kMaxSets = 64;
constexpr int kMaxDepth = 32;

CodePointSet one(char32_t point) {
  return CodePointSet({{point, point}});
}

/// Both cases of a letter; s and k have a third form beyond ASCII (long s, the Kelvin sign).
CodePointSet any_case(char32_t point) {
  std::vector<CodePointRange> forms = {{point, point}};
  const char32_t lower = point | 0x20;
  if (lower >= 'a' && lower <= 'z') {
    forms.push_back({lower, lower});
    forms.push_back({lower - 0x20, lower - 0x20});
    if (lower == 's') forms.push_back({0x17f, 0x17f});
    if (lower == 'k') forms.push_back({0x212a, 0x212a});
  }
  return CodePointSet(std::move(forms));
}

class Parser {
 public:
  Parser(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {
    if (pattern.size() > kMaxLength) {
      throw DataError("{}: a pattern of {} bytes; patterns may have {}.", where, pattern.size(),
                      kMaxLength);
    }
  }

  ParsedPattern parse() {
    alternatives(0, false);
    if (!at_end()) refuse("an unmatched closing parenthesis");
    flush();
    return std::move(parsed_);
  }

  ParsedPattern literal() {
    while (!at_end()) put(one(take()));
    flush();
    return std::move(parsed_);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    throw DataError("{}: the pattern has {} at byte {}, which isn't supported.", where_, problem,
                    next_);
  }

  bool at_end() const { return next_ == pattern_.size(); }
  bool at(std::string_view text) const { return pattern_.substr(next_).starts_with(text); }
  bool accept(std::string_view text) {
    if (!at(text)) return false;
    next_ += text.size();
    return true;
  }

  char32_t take() {
    if (at_end()) refuse("an unexpected end");
    const data::CodePoint point = data::decode_utf8(data::as_bytes(pattern_), next_);
    if (point.length == 0) refuse("invalid UTF-8");
    next_ += static_cast<std::size_t>(point.length);
    return point.value;
  }

  void flush() {
    if (!syntax_.empty()) parsed_.parts.push_back({std::exchange(syntax_, {}), -1});
  }

  void put(const CodePointSet& set) {
    auto found = std::find(parsed_.sets.begin(), parsed_.sets.end(), set);
    if (found == parsed_.sets.end()) {
      if (parsed_.sets.size() == kMaxSets) refuse("more than 64 different characters and classes");
      parsed_.sets.push_back(set);
      found = std::prev(parsed_.sets.end());
    }
    parsed_.parts.push_back(
        {std::exchange(syntax_, {}), static_cast<int>(found - parsed_.sets.begin())});
  }

  void alternatives(int depth, bool ignore_case) {
    if (depth > kMaxDepth) refuse("groups nested too deeply");
    while (!at_end() && !at(")")) {
      if (accept("|")) {
        syntax_ += '|';
      } else if (at("(")) {
        group(depth, ignore_case);
        quantifier();
      } else if (accept("$")) {
        end_of_line();
      } else {
        put(element(ignore_case));
        quantifier();
      }
    }
  }

  void group(int depth, bool ignore_case) {
    bool is_assertion = false;
    if (accept("(?i:")) {
      syntax_ += "(?:";
      ignore_case = true;
    } else if (accept("(?:")) {
      syntax_ += "(?:";
    } else if (at("(?=") || at("(?!")) {
      syntax_ += pattern_.substr(next_, 3);
      next_ += 3;
      is_assertion = true;
    } else if (at("(?") || at("(*")) {
      refuse(pattern_.substr(next_, 4));
    } else {
      accept("(");
      syntax_ += "(?:";
    }
    alternatives(depth + 1, ignore_case);
    if (!accept(")")) refuse("a group without its end");
    syntax_ += ')';
    if (is_assertion && (at("*") || at("+") || at("?") || at("{"))) refuse("a repeated assertion");
  }

  /// In Ruby's dialect, `$` is the end of any line.
  void end_of_line() {
    syntax_ += "(?:(?=";
    put(one('\n'));
    syntax_ += ")|\\z)";
    if (at("*") || at("+") || at("?") || at("{")) refuse("a repeated anchor");
  }

  /// One code point or class.
  CodePointSet element(bool ignore_case) {
    if (at("^")) refuse("an anchor");
    if (at("*") || at("+") || at("?") || at("{") || at("}") || at("]")) {
      refuse(fmt::format("\"{}\" in this place", pattern_[next_]));
    }
    if (accept(".")) return one('\n').complement();
    if (accept("[")) return bracket(ignore_case);
    if (accept("\\")) {
      if (std::optional<CodePointSet> set = class_escape()) {
        if (ignore_case) refuse("a class without case");
        return *set;
      }
      return cased(character_escape(), ignore_case);
    }
    return cased(take(), ignore_case);
  }

  CodePointSet cased(char32_t point, bool ignore_case) const {
    if (!ignore_case) return one(point);
    if (point >= 0x80) refuse("a character beyond ASCII without case");
    return any_case(point);
  }

  /// The class that follows a backslash, if it is one.
  std::optional<CodePointSet> class_escape() {
    if (accept("s")) return white_space();
    if (accept("S")) return white_space().complement();
    if (accept("d")) return *general_category("Nd");
    if (!at("p{") && !at("P{")) return std::nullopt;
    bool negated = pattern_[next_] == 'P';
    next_ += 2;
    if (accept("^")) negated = !negated;
    const std::size_t end = pattern_.find('}', next_);
    if (end == std::string_view::npos) refuse("\\p without its end");
    const std::string_view name = pattern_.substr(next_, end - next_);
    const std::optional<CodePointSet> set = general_category(name);
    if (!set) refuse(fmt::format("the property \"{}\"", name.substr(0, 32)));
    next_ = end + 1;
    return negated ? set->complement() : *set;
  }

  char32_t character_escape() {
    if (at_end()) refuse("a backslash at its end");
    const char escaped = pattern_[next_];
    const auto is_between = [&](char first, char last) {
      return escaped >= first && escaped <= last;
    };
    if (accept("n")) return '\n';
    if (accept("r")) return '\r';
    if (accept("t")) return '\t';
    if (is_between('0', '9') || is_between('a', 'z') || is_between('A', 'Z')) {
      refuse(fmt::format("\\{}", escaped));
    }
    return take();
  }

  CodePointSet bracket(bool ignore_case) {
    const bool negated = accept("^");
    CodePointSet set;
    if (at("]")) refuse("an empty class");
    while (!accept("]")) {
      if (at("[") || at("&&")) refuse("a class inside a class");
      if (accept("\\")) {
        if (const std::optional<CodePointSet> inner = class_escape()) {
          if (ignore_case) refuse("a class without case");
          set = set | *inner;
          if (at("-") && !at("-]")) refuse("a range that begins with a class");
          continue;
        }
        set = set | range_from(character_escape(), ignore_case);
      } else {
        set = set | range_from(take(), ignore_case);
      }
    }
    return negated ? set.complement() : set;
  }

  CodePointSet range_from(char32_t first, bool ignore_case) {
    if (!at("-") || at("-]")) return cased(first, ignore_case);
    accept("-");
    if (ignore_case) refuse("a range without case");
    if (at("[")) refuse("a class inside a class");
    const char32_t last = accept("\\") ? character_escape() : take();
    if (last < first) refuse("a range that ends before it begins");
    return CodePointSet({{first, last}});
  }

  void quantifier() {
    if (accept("*") || accept("+") || accept("?")) {
      syntax_ += pattern_[next_ - 1];
      if (accept("?") || accept("+")) syntax_ += pattern_[next_ - 1];
    } else if (at("{")) {
      interval();
    } else {
      return;
    }
    if (at("*") || at("+") || at("?") || at("{")) refuse("a repetition of a repetition");
  }

  void interval() {
    accept("{");
    const std::string low = digits();
    std::string text = "{" + low;
    if (accept(",")) text += "," + digits();
    if (low.empty() || !accept("}")) refuse("a repetition other than {n}, {n,} or {n,m}");
    if (at("+") || at("?")) refuse("{n,m} with + or ?");
    syntax_ += text + "}";
  }

  std::string digits() {
    std::string text;
    while (!at_end() && pattern_[next_] >= '0' && pattern_[next_] <= '9') {
      text += pattern_[next_++];
    }
    if (text.size() > 4) refuse("a repetition of more than 9,999");
    return text;
  }

  std::string_view pattern_;
  std::string_view where_;
  std::size_t next_ = 0;
  std::string syntax_;  ///< that no set has followed yet
  ParsedPattern parsed_;
};

}  // namespace

ParsedPattern parse_pattern(std::string_view pattern, std::string_view where) {
  return Parser(pattern, where).parse();
}

ParsedPattern literal_pattern(std::string_view text, std::string_view where) {
  return Parser(text, where).literal();
}

}  // namespace sherd::tokenizer
