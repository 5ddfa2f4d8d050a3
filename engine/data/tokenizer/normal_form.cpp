#include "engine/data/tokenizer/normal_form.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "engine/data/utf8.h"

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

constexpr std::size_t kMostNormalised = std::size_t{1} << 30;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// ICU puts each combining mark into its place among those before it, one by one: a run of n takes
/// n * n steps. Long runs are decomposed and sorted here. That changes nothing in any normal form:
/// decomposed marks are sorted, stably, by their class in all of them.
class LongRuns {
 public:
  LongRuns(const icu::Normalizer2& form, std::string_view text) : form_(form), text_(text) {}

  /// The text with its long runs sorted; nothing if it has none.
  std::string sorted() {
    std::string result;
    std::size_t copied = 0;
    // A long run has one of these bytes.
    for (std::size_t at = 0; at < text_.size(); at += kLong) {
      if (static_cast<std::uint8_t>(text_[at]) < 0x80) continue;
      std::size_t begin = begin_of(at);
      if (!is_mark(begin)) continue;
      while (begin > copied && is_mark(begin_of(begin - 1))) begin = begin_of(begin - 1);
      std::size_t end = begin;
      marks_.clear();
      while (end < text_.size() && is_mark(end)) end = take(end);
      if (end - begin >= kLong) {
        result.append(text_, copied, begin - copied);
        append_sorted(result);
        copied = end;
      }
      at = end - end % kLong;
    }
    if (copied > 0) result.append(text_, copied);
    return result;
  }

 private:
  static constexpr std::size_t kLong = 256;
  struct Mark {
    std::uint8_t order;
    UChar32 point;
  };

  std::size_t begin_of(std::size_t at) const {
    while (at > 0 && (static_cast<std::uint8_t>(text_[at]) & 0xc0) == 0x80) --at;
    return at;
  }
  data::CodePoint point_at(std::size_t at) const {
    return data::decode_utf8(data::as_bytes(text_), at);
  }
  /// Whether the character is nothing but marks in this form.
  bool is_mark(std::size_t at) {
    const auto point = static_cast<UChar32>(point_at(at).value);
    if (form_.getCombiningClass(point) != 0) return true;
    if (!form_.getDecomposition(point, parts_)) return false;
    for (std::int32_t i = 0; i < parts_.length(); i = parts_.moveIndex32(i, 1)) {
      if (form_.getCombiningClass(parts_.char32At(i)) == 0) return false;
    }
    return true;
  }
  std::size_t take(std::size_t at) {
    const data::CodePoint point = point_at(at);
    const auto value = static_cast<UChar32>(point.value);
    if (!form_.getDecomposition(value, parts_)) parts_ = icu::UnicodeString(value);
    for (std::int32_t i = 0; i < parts_.length(); i = parts_.moveIndex32(i, 1)) {
      marks_.push_back({form_.getCombiningClass(parts_.char32At(i)), parts_.char32At(i)});
    }
    return at + static_cast<std::size_t>(point.length);
  }
  void append_sorted(std::string& result) {
    std::stable_sort(marks_.begin(), marks_.end(),
                     [](const Mark& a, const Mark& b) { return a.order < b.order; });
    for (const Mark& mark : marks_) data::append_utf8(result, static_cast<char32_t>(mark.point));
  }

  const icu::Normalizer2& form_;
  std::string_view text_;
  icu::UnicodeString parts_;
  std::vector<Mark> marks_;
};

}  // namespace

bool to_normal_form(NormalForm form, std::string_view text, std::string& result) {
  if (is_ascii(text)) return false;
  if (text.size() > kMostNormalised) {
    throw DataError("a text of {} bytes is too long to be normalised; cut it into documents.",
                    text.size());
  }
  const icu::Normalizer2& normalizer = normalizer_of(form);
  const std::string sorted = LongRuns(normalizer, text).sorted();
  if (!sorted.empty()) text = sorted;
  result.reserve(text.size());
  icu::StringByteSink<std::string> sink(&result);
  UErrorCode status = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())),
                           sink, nullptr, status);
  require(status);
  return true;
}

}  // namespace sherd::tokenizer
