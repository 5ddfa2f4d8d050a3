#include "engine/data/tokenizer/pattern/unicode_classes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace sherd::tokenizer {
namespace {

constexpr std::uint32_t kRuns[] = {
#include "engine/data/tokenizer/pattern/general_category.inc"
};

// The order is unicode_table.py's.
constexpr std::array<std::string_view, 30> kCategories = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const CodePointRange& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::contains(char32_t point) const {
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), point,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges_.begin() && point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) gaps.push_back({next, kLastCodePoint});
  return CodePointSet(std::move(gaps));
}

CodePointSet CodePointSet::operator|(const CodePointSet& other) const {
  std::vector<CodePointRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(both));
}

std::optional<CodePointSet> general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return std::nullopt;
  const auto belongs = [&](std::string_view category) { return category.starts_with(name); };
  if (std::none_of(kCategories.begin(), kCategories.end(), belongs)) return std::nullopt;
  std::vector<CodePointRange> ranges;
  for (std::size_t i = 0; i < std::size(kRuns); ++i) {
    if (!belongs(kCategories[kRuns[i] & 31])) continue;
    const char32_t end = i + 1 < std::size(kRuns) ? kRuns[i + 1] >> 5 : kLastCodePoint + 1;
    ranges.push_back({kRuns[i] >> 5, end - 1});
  }
  return CodePointSet(std::move(ranges));
}

const CodePointSet& white_space() {
  static const CodePointSet set({{0x9, 0xd},
                                 {0x20, 0x20},
                                 {0x85, 0x85},
                                 {0xa0, 0xa0},
                                 {0x1680, 0x1680},
                                 {0x2000, 0x200a},
                                 {0x2028, 0x2029},
                                 {0x202f, 0x202f},
                                 {0x205f, 0x205f},
                                 {0x3000, 0x3000}});
  return set;
}

const CodePointSet& word_characters() {
  // Alphabetic (letters, letter numbers, circled and squared letters; the marks among Alphabetic
  // are in M), marks, decimal digits, connectors, joiners.
  static const CodePointSet set = *general_category("L") | *general_category("M") |
                                  *general_category("Nd") | *general_category("Nl") |
                                  *general_category("Pc") |
                                  CodePointSet({{0x200c, 0x200d},
                                                {0x24b6, 0x24e9},
                                                {0x1f130, 0x1f149},
                                                {0x1f150, 0x1f169},
                                                {0x1f170, 0x1f189}});
  return set;
}

}  // namespace sherd::tokenizer
