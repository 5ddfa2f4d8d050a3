#include "engine/data/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
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

std::string run(const ToNormalForm& step, std::string text) {
  if (is_ascii(text)) return text;
  if (text.size() > std::size_t{1} << 30) {
    throw DataError("a text of {} bytes is too long to be normalised; cut it into documents.",
                    text.size());
  }
  std::string normal;
  normal.reserve(text.size());
  icu::StringByteSink<std::string> sink(&normal);
  UErrorCode status = U_ZERO_ERROR;
  normalizer_of(step.form).normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
      status);
  require(status);
  return normal;
}

std::string run(const Prepend& step, std::string text) {
  return text.empty() ? text : step.text + text;
}

std::string run(const ReplaceText& step, const std::string& text) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  for (std::size_t found = text.find(step.from); found != std::string::npos;
       found = text.find(step.from, done)) {
    result.append(text, done, found - done);
    result += step.to;
    done = found + step.from.size();
  }
  return result.append(text, done);
}

std::string run(const ReplacePattern& step, const std::string& text) {
  std::string result;
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
  return result.append(text, done);
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const NormalizerStep& step : steps_) {
    result = std::visit([&](const auto& kind) { return run(kind, std::move(result)); }, step);
  }
  return result;
}

}  // namespace sherd::tokenizer
