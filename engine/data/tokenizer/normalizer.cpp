#include "engine/data/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace sherd::tokenizer {
namespace {

const icu::Normalizer2* icu_normalizer(NormalForm form, UErrorCode& status) {
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(status);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(status);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(status);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(status);
  }
  return nullptr;
}

void require(UErrorCode status) {
  if (U_SUCCESS(status)) return;
  throw UsageError("ICU can't normalise text ({}); install its data.", u_errorName(status));
}

/// Made once and kept: ICU's objects are immutable and any thread may use them.
const icu::Normalizer2& normalizer_of(NormalForm form) {
  static const std::array<const icu::FilteredNormalizer2*, 4> all = [] {
    UErrorCode status = U_ZERO_ERROR;
    auto* const unicode_9 = new icu::UnicodeSet(u"[:age=9.0:]", status);
    require(status);
    unicode_9->freeze();
    std::array<const icu::FilteredNormalizer2*, 4> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      const icu::Normalizer2* whole = icu_normalizer(static_cast<NormalForm>(i), status);
      require(status);
      made[i] = new icu::FilteredNormalizer2(*whole, *unicode_9);
    }
    return made;
  }();
  return *all[static_cast<std::size_t>(form)];
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Each writes `result`, which is empty and isn't what `text` is in, and says whether anything changed.

bool run(const ToNormalForm& step, std::string_view text, std::string& result) {
  if (is_ascii(text)) return false;
  if (text.size() > std::size_t{1} << 30) {
    throw DataError("a text of {} bytes is too long to be normalised; cut it into documents.",
                    text.size());
  }
  result.reserve(text.size());
  icu::StringByteSink<std::string> sink(&result);
  UErrorCode status = U_ZERO_ERROR;
  normalizer_of(step.form).normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
      status);
  require(status);
  return true;
}

bool run(const Prepend& step, std::string_view text, std::string& result) {
  if (text.empty()) return false;
  result.append(step.text).append(text);
  return true;
}

// Spaces, mostly: every few bytes one.
void replace_byte(char from, std::string_view to, std::string_view text, std::string& result) {
  const auto count = static_cast<std::size_t>(std::count(text.begin(), text.end(), from));
  const std::size_t size = text.size() + count * to.size() - count;
  std::array<char, 4> word{};  // what is short is written whole: an instruction, not a call
  const bool fits = to.size() <= word.size();
  if (fits) std::copy(to.begin(), to.end(), word.begin());
  result.resize(size + word.size());
  char* out = result.data();
  if (fits) {
    std::uint32_t replacement = 0;
    std::memcpy(&replacement, word.data(), sizeof(replacement));
    for (const char c : text) {  // without a branch: where words end can't be guessed
      const bool found = c == from;
      const std::uint32_t written = found ? replacement : static_cast<std::uint8_t>(c);
      std::memcpy(out, &written, sizeof(written));
      out += found ? to.size() : 1;
    }
  } else {
    for (const char& c : text) {
      const std::string_view written = c == from ? to : std::string_view(&c, 1);
      out = std::copy(written.begin(), written.end(), out);
    }
  }
  result.resize(size);
}

bool run(const ReplaceText& step, std::string_view text, std::string& result) {
  if (step.from.size() == 1) {
    replace_byte(step.from[0], step.to, text, result);
    return true;
  }
  std::size_t done = 0;
  for (std::size_t found = text.find(step.from); found != std::string::npos;
       found = text.find(step.from, done)) {
    result.append(text, done, found - done);
    result += step.to;
    done = found + step.from.size();
  }
  result.append(text, done);
  return true;
}

bool run(const ReplacePattern& step, std::string_view text, std::string& result) {
  std::size_t done = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  SplitPattern::Scratch scratch;
  SplitPattern::Scan scan(step.from, scratch, text);
  while (scan.next(begin, end)) {
    result.append(text, done, begin - done);
    result += step.to;
    done = end;
  }
  result.append(text, done);
  return true;
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

std::string_view Normalizer::apply(std::string_view text, Scratch& scratch) const {
  for (const NormalizerStep& step : steps_) {
    std::string& result = scratch.other;
    result.clear();
    if (!std::visit([&](const auto& kind) { return run(kind, text, result); }, step)) continue;
    scratch.text.swap(result);
    text = scratch.text;
  }
  return text;
}

std::string Normalizer::apply(std::string_view text) const {
  Scratch scratch;
  return std::string(apply(text, scratch));
}

}  // namespace sherd::tokenizer
