#include "engine/data/tokenizer/pattern/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/pattern/automaton.h"

namespace sherd::tokenizer {
namespace {

/// Limits for a scan of one text: characters that a table read in vain, and PCRE2's steps in
/// matches that exceeded kFirstLimit.
constexpr std::int64_t kMostInVain = 2'000'000'000;
constexpr std::int64_t kMostSteps = 50'000'000, kMostStepsEach = 64;  // and for a character
/// Limits on steps and characters in PCRE2's first attempt.
constexpr std::uint32_t kFirstLimit = 1 << 10;
constexpr std::size_t kFirstWindow = 128;
constexpr std::uint32_t kMostHeapKiB = 64 << 10;
constexpr std::size_t kPageSize = 256;

/// The kind of every code point. Kinds begin at 1.
struct Kinds {
  std::array<std::uint8_t, 128> ascii{};
  std::vector<std::array<std::uint8_t, kPageSize>> pages;
  std::array<std::uint16_t, (kLastCodePoint + 1) / kPageSize> page_of{};

  std::uint8_t of(char32_t point) const {
    return pages[page_of[point / kPageSize]][point % kPageSize];
  }
  /// The kind of the code point at `at`; moves `at` past it. Callers guarantee that the text is
  /// UTF-8.
  std::uint8_t take(const std::uint8_t*& at) const {
    const std::uint8_t lead = *at;
    if (lead < 0x80) return ascii[*at++];
    const auto tail = [&](int i) { return at[i] & 0x3fu; };
    char32_t point = 0;
    if (lead < 0xe0) {
      point = (lead & 0x1fu) << 6 | tail(1);
      at += 2;
    } else if (lead < 0xf0) {
      point = (lead & 0x0fu) << 12 | tail(1) << 6 | tail(2);
      at += 3;
    } else {
      point = (lead & 0x07u) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
      at += 4;
    }
    return of(point);
  }
};

const std::uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

struct Segment {
  char32_t first;
  std::uint8_t kind;
};

/// Cuts the code points wherever a set begins or ends; what is in the same sets is one kind.
std::vector<Segment> segments(const ParsedPattern& parsed, std::string_view where,
                              std::vector<std::uint64_t>& sets_of_kind) {
  std::map<char32_t, std::uint64_t> changes = {{0, 0}};
  for (std::size_t set = 0; set < parsed.sets.size(); ++set) {
    for (const CodePointRange& range : parsed.sets[set].ranges()) {
      changes[range.first] ^= std::uint64_t{1} << set;
      if (range.last < kLastCodePoint) changes[range.last + 1] ^= std::uint64_t{1} << set;
    }
  }
  std::map<std::uint64_t, std::uint8_t> kinds;
  std::vector<Segment> result;
  std::uint64_t sets = 0;
  for (const auto& [point, change] : changes) {
    sets ^= change;
    const auto [kind, is_new] =
        kinds.try_emplace(sets, static_cast<std::uint8_t>(sets_of_kind.size() + 1));
    if (is_new) sets_of_kind.push_back(sets);
    if (sets_of_kind.size() > 255) {
      throw DataError("{}: the pattern's classes overlap in too many ways.", where);
    }
    result.push_back({point, kind->second});
  }
  return result;
}

std::unique_ptr<Kinds> make_kinds(const std::vector<Segment>& segments) {
  auto kinds = std::make_unique<Kinds>();
  std::map<std::array<std::uint8_t, kPageSize>, std::uint16_t> known;
  std::size_t segment = 0;
  for (std::size_t page = 0; page < kinds->page_of.size(); ++page) {
    std::array<std::uint8_t, kPageSize> values{};
    for (std::size_t i = 0; i < kPageSize; ++i) {
      const auto point = static_cast<char32_t>(page * kPageSize + i);
      while (segment + 1 < segments.size() && segments[segment + 1].first <= point) ++segment;
      values[i] = segments[segment].kind;
    }
    const auto [place, is_new] =
        known.try_emplace(values, static_cast<std::uint16_t>(kinds->pages.size()));
    if (is_new) kinds->pages.push_back(values);
    kinds->page_of[page] = place->second;
  }
  for (std::size_t i = 0; i < 128; ++i) kinds->ascii[i] = kinds->of(static_cast<char32_t>(i));
  return kinds;
}

std::string pattern_of_kinds(const ParsedPattern& parsed,
                             const std::vector<std::uint64_t>& sets_of_kind) {
  std::string text;
  for (const PatternPart& part : parsed.parts) {
    text += part.syntax;
    if (part.set < 0) continue;
    std::string members;
    for (std::size_t kind = 0; kind < sets_of_kind.size(); ++kind) {
      if ((sets_of_kind[kind] >> part.set) & 1) members += fmt::format("\\x{:02x}", kind + 1);
    }
    text += members.empty()       ? "[^\\x00-\\xff]"
            : members.size() == 4 ? members
                                  : "[" + members + "]";
  }
  return text;
}

}  // namespace

struct SplitPattern::Compiled {
  std::unique_ptr<Kinds> kinds;
  std::optional<Automaton> automaton;
  pcre2_code* code = nullptr;
  std::string where;
  ~Compiled() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(const ParsedPattern& parsed, std::string_view where, Matcher matcher)
    : compiled_(std::make_unique<Compiled>()) {
  std::vector<std::uint64_t> sets_of_kind;
  const std::vector<Segment> cut = segments(parsed, where, sets_of_kind);
  compiled_->where = where;
  compiled_->kinds = make_kinds(cut);
  const std::string text = pattern_of_kinds(parsed, sets_of_kind);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // PCRE2 10.42's start optimisations miss matches: (?=x)c?x in "nx", whose x they look for twice.
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_START_OPTIMIZE, &error, &offset, nullptr);
  if (!compiled_->code) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    throw DataError("{}: not a regular expression ({}).", where,
                    reinterpret_cast<const char*>(message.data()));
  }
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(compiled_->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty) throw DataError("{}: the pattern matches the empty string.", where);
  if (matcher == Matcher::kBest) compiled_->automaton = Automaton::make(parsed, sets_of_kind);
}

bool SplitPattern::is_table() const {
  return compiled_->automaton.has_value();
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;

struct SplitPattern::Scratch::State {
  std::vector<std::uint8_t> kinds;
  std::size_t num_kinds = 0;
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);

  State() {
    if (!match || !context) throw std::bad_alloc();
    pcre2_set_heap_limit(context, kMostHeapKiB);
  }
  ~State() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
};

SplitPattern::Scratch::Scratch() : state(std::make_unique<State>()) {}
SplitPattern::Scratch::~Scratch() = default;
SplitPattern::Scratch::Scratch(Scratch&&) noexcept = default;

SplitPattern::Scan::Scan(const SplitPattern& pattern, Scratch& scratch, std::string_view text)
    : pattern_(pattern), scratch_(scratch), text_(text) {
  if (!pattern.is_table()) write_kinds();
}

bool SplitPattern::Scan::next(std::size_t& begin, std::size_t& end) {
  return pattern_.is_table() ? next_of_table(begin, end) : next_of_pcre2(begin, end);
}

bool SplitPattern::Scan::next_of_table(std::size_t& begin, std::size_t& end) {
  const Kinds& kinds = *pattern_.compiled_->kinds;
  const Automaton& automaton = *pattern_.compiled_->automaton;
  const std::uint8_t* const text = bytes_of(text_);
  const std::uint8_t* const text_end = text + text_.size();
  std::int64_t in_vain = 0;  // characters of attempts that failed
  for (const std::uint8_t* first = text + next_byte_; first != text_end; kinds.take(first)) {
    const std::uint8_t* at = first;
    const std::uint8_t* match_end = nullptr;
    std::uint32_t state = automaton.start();
    while (at != text_end) {
      const std::uint8_t* const here = at;
      state = automaton.next(state, kinds.take(at));
      if ((state & Automaton::kMatched) != 0) match_end = here;
      state &= ~Automaton::kMatched;
      if (state == Automaton::kDead) break;
    }
    if (state != Automaton::kDead &&
        (automaton.next(state, Automaton::kEndOfText) & Automaton::kMatched) != 0) {
      match_end = text_end;
    }
    if (!match_end) {
      in_vain += at - first;
      if (in_vain > kMostInVain) backtracks_too_much();
      continue;
    }
    begin = static_cast<std::size_t>(first - text);
    end = next_byte_ = static_cast<std::size_t>(match_end - text);
    return true;
  }
  next_byte_ = text_.size();
  return false;
}

void SplitPattern::Scan::write_kinds() {
  const Kinds& kinds = *pattern_.compiled_->kinds;
  Scratch::State& state = *scratch_.state;
  if (state.kinds.size() < text_.size()) state.kinds.resize(text_.size());
  std::uint8_t* out = state.kinds.data();
  const std::uint8_t* in = bytes_of(text_);
  const std::uint8_t* const end = in + text_.size();
  while (in != end) *out++ = kinds.take(in);
  state.num_kinds = static_cast<std::size_t>(out - state.kinds.data());
  is_ascii_ = state.num_kinds == text_.size();
}

std::size_t SplitPattern::Scan::byte_of(std::size_t character) {
  if (is_ascii_) return character;
  const std::uint8_t* const bytes = bytes_of(text_);
  for (; known_character_ < character; ++known_character_) {
    const std::uint8_t lead = bytes[known_byte_];
    known_byte_ += lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  }
  return known_byte_;
}

void SplitPattern::Scan::backtracks_too_much() const {
  throw DataError("{}: the pattern backtracks too much on a text of {} bytes.",
                  pattern_.compiled_->where, text_.size());
}

void SplitPattern::Scan::spend(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(steps);
  const auto each = kMostStepsEach * static_cast<std::int64_t>(scratch_.state->num_kinds);
  if (steps_ > kMostSteps + each) backtracks_too_much();
}

// The interpreter, not compiled code, whose steps are others on every processor. It counts where it
// backtracks and says only that a limit was reached; what it runs over in one go it doesn't count.
// So it gets few steps and little text first, and more of what it lacked: a partial match is one
// that looked at the end of the text it got.
int SplitPattern::Scan::match_with_pcre2() {
  Scratch::State& state = *scratch_.state;
  std::uint32_t limit = kFirstLimit;
  std::size_t window = kFirstWindow;
  for (;;) {
    const bool is_whole = window >= state.num_kinds - next_character_;
    const std::size_t end = is_whole ? state.num_kinds : next_character_ + window;
    pcre2_set_match_limit(state.context, limit);
    const int result =
        pcre2_match(pattern_.compiled_->code, state.kinds.data(), end, next_character_,
                    is_whole ? 0 : PCRE2_PARTIAL_HARD, state.match, state.context);
    if (result == PCRE2_ERROR_MATCHLIMIT) {
      spend(limit);
      limit *= 2;
    } else if (result == PCRE2_ERROR_PARTIAL) {
      spend(window);
      window *= 2;
    } else if (result == PCRE2_ERROR_NOMATCH && !is_whole) {
      next_character_ = end;  // none begins before it, whatever follows
    } else {
      return result;
    }
  }
}

bool SplitPattern::Scan::next_of_pcre2(std::size_t& begin, std::size_t& end) {
  Scratch::State& state = *scratch_.state;
  if (next_character_ == state.num_kinds) return false;
  const int result = match_with_pcre2();
  if (result == PCRE2_ERROR_NOMATCH) {
    next_character_ = state.num_kinds;
    return false;
  }
  if (result < 0) backtracks_too_much();
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(state.match);
  begin = byte_of(found[0]);
  end = byte_of(found[1]);
  next_character_ = found[1];
  return true;
}

}  // namespace sherd::tokenizer
