#include "engine/data/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace sherd::tokenizer {
namespace {

[[noreturn]] void grows_too_much(std::size_t most) {
  throw DataError(
      "the tokenizer's normaliser makes a text longer than {} bytes, {} times its size.", most,
      kMostGrowth);
}

// Each writes `result` and returns whether anything changed. `result` starts empty and doesn't own
// `text`. It gets at most `most` bytes.

bool run(const ToNormalForm& step, std::string_view text, std::size_t, std::string& result) {
  return to_normal_form(step.form, text, result);
}

bool run(const Prepend& step, std::string_view text, std::size_t most, std::string& result) {
  if (text.empty()) return false;
  if (step.text.size() > most - std::min(most, text.size())) grows_too_much(most);
  result.append(step.text).append(text);
  return true;
}

// Spaces, mostly: every few bytes one.
void replace_byte(char from, std::string_view to, std::string_view text, std::size_t most,
                  std::string& result) {
  const auto count = static_cast<std::size_t>(std::count(text.begin(), text.end(), from));
  if (to.size() > most / std::max<std::size_t>(count, 1)) grows_too_much(most);
  const std::size_t size = text.size() + count * to.size() - count;
  if (size > most) grows_too_much(most);
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

bool run(const ReplaceText& step, std::string_view text, std::size_t most, std::string& result) {
  if (step.from.size() == 1) {
    replace_byte(step.from[0], step.to, text, most, result);
    return true;
  }
  std::size_t done = 0;
  for (std::size_t found = text.find(step.from); found != std::string::npos;
       found = text.find(step.from, done)) {
    result.append(text, done, found - done);
    if (step.to.size() > most - std::min(most, result.size())) grows_too_much(most);
    result += step.to;
    done = found + step.from.size();
  }
  if (text.size() - done > most - std::min(most, result.size())) grows_too_much(most);
  result.append(text, done);
  return true;
}

bool run(const ReplacePattern& step, std::string_view text, std::size_t most, std::string& result) {
  std::size_t done = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  SplitPattern::Scratch scratch;
  SplitPattern::Scan scan(step.from, scratch, text);
  while (scan.next(begin, end)) {
    result.append(text, done, begin - done);
    if (step.to.size() > most - std::min(most, result.size())) grows_too_much(most);
    result += step.to;
    done = end;
  }
  if (text.size() - done > most - std::min(most, result.size())) grows_too_much(most);
  result.append(text, done);
  return true;
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

std::string_view Normalizer::apply(std::string_view text, Scratch& scratch, Place place) const {
  const std::size_t most = kMostGrowth * text.size() + kMostAdded;
  for (const NormalizerStep& step : steps_) {
    if (place == Place::kJoined && std::holds_alternative<Prepend>(step)) continue;
    std::string& result = scratch.other;
    result.clear();
    if (!std::visit([&](const auto& kind) { return run(kind, text, most, result); }, step))
      continue;
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
