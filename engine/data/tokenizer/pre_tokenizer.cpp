#include "engine/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {

struct PreTokenizer::Call {
  Scratch& scratch;
  const std::function<void(std::string_view)>& on_word;
  std::int64_t& left;  ///< bytes that the steps may hand on, all of them together
};

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {
  for (const PreTokenizerStep& step : steps_) {
    spells_bytes_ |= std::holds_alternative<SpellBytesStep>(step);
  }
}

PreTokenizer::Scratch::Scratch(const PreTokenizer& pre_tokenizer)
    : steps_(pre_tokenizer.steps_.size()) {}

void PreTokenizer::split(std::string_view piece, Place place, Scratch& scratch,
                         const std::function<void(std::string_view)>& on_word) const {
  auto left =
      static_cast<std::int64_t>((steps_.size() + 1) * (kMostGrowth * piece.size() + kMostAdded));
  run({scratch, on_word, left}, 0, piece, place);
}

void PreTokenizer::run(const Call& call, std::size_t step, std::string_view piece,
                       Place place) const {
  if (piece.empty()) return;
  call.left -= std::ssize(piece);
  if (call.left < 0) {
    throw DataError("the tokenizer's pre-tokenizer makes a text more than {} times as long.",
                    kMostGrowth);
  }
  if (step == steps_.size()) {
    if (spells_bytes_) {
      call.scratch.word_ = bytes_of_alphabet(piece).value_or(std::string());
      piece = call.scratch.word_;
    }
    call.on_word(piece);
    return;
  }
  std::visit([&](const auto& kind) { run(call, step, kind, piece, place); }, steps_[step]);
}

void PreTokenizer::run(const Call& call, std::size_t step, const SplitStep& kind,
                       std::string_view piece, Place place) const {
  Scratch::Step& scratch = call.scratch.steps_[step];
  const auto pass_on = [&](std::size_t begin, std::size_t end) {
    run(call, step + 1, piece.substr(begin, end - begin), begin == 0 ? place : Place::kInside);
  };
  std::size_t done = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  SplitPattern::Scan scan(kind.pattern, scratch.match, piece);
  if (kind.behavior == SplitBehavior::kIsolated) {
    for (; scan.next(begin, end); done = end) {
      if (done < begin) pass_on(done, begin);
      pass_on(begin, end);
    }
    if (done < piece.size()) pass_on(done, piece.size());
    return;
  }
  scratch.parts.clear();
  for (; scan.next(begin, end); done = end) {
    if (done < begin) scratch.parts.push_back({done, begin, kind.invert});
    scratch.parts.push_back({begin, end, !kind.invert});
  }
  if (done < piece.size()) scratch.parts.push_back({done, piece.size(), kind.invert});
  merge_parts(kind.behavior, scratch.parts);
  for (const Scratch::Part& part : scratch.parts) pass_on(part.begin, part.end);
}

void PreTokenizer::merge_parts(SplitBehavior behavior, std::vector<Scratch::Part>& parts) {
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(parts, [](const Scratch::Part& part) { return part.is_match; });
    return;
  }
  const bool from_the_end = behavior == SplitBehavior::kMergedNext;
  if (from_the_end) std::reverse(parts.begin(), parts.end());
  std::size_t kept = 0;
  bool previous_is_match = false;
  for (const Scratch::Part part : parts) {
    const bool joins = behavior == SplitBehavior::kContiguous ? part.is_match == previous_is_match
                                                              : part.is_match && !previous_is_match;
    previous_is_match = part.is_match;
    if (joins && kept > 0) {
      parts[kept - 1].begin = std::min(parts[kept - 1].begin, part.begin);
      parts[kept - 1].end = std::max(parts[kept - 1].end, part.end);
    } else {
      parts[kept++] = part;
    }
  }
  parts.resize(kept);
  if (from_the_end) std::reverse(parts.begin(), parts.end());
}

void PreTokenizer::run(const Call& call, std::size_t step, const PrefixSpaceStep&,
                       std::string_view piece, Place place) const {
  if (place == Place::kJoined || piece.starts_with(' ')) {
    run(call, step + 1, piece, place);
    return;
  }
  std::string& text = call.scratch.steps_[step].text;
  text.assign(1, ' ').append(piece);
  run(call, step + 1, text, place);
}

void PreTokenizer::run(const Call& call, std::size_t step, const SpellBytesStep&,
                       std::string_view piece, Place place) const {
  std::string& text = call.scratch.steps_[step].text;
  text.clear();
  for (const std::uint8_t byte : data::as_bytes(piece)) {
    data::append_utf8(text, character_of_byte(byte));
  }
  run(call, step + 1, text, place);
}

void PreTokenizer::run(const Call& call, std::size_t step, const MetaspaceStep& kind,
                       std::string_view piece, Place place) const {
  std::string& text = call.scratch.steps_[step].text;
  text.clear();
  using Prepend = MetaspaceStep::Prepend;
  const bool prepends = (kind.prepend == Prepend::kAlways && place != Place::kJoined) ||
                        (kind.prepend == Prepend::kFirst && place == Place::kStart);
  if (prepends && !piece.starts_with(' ') && !piece.starts_with(kind.replacement)) {
    text += kind.replacement;
  }
  for (const char c : piece) {
    if (c == ' ') {
      text += kind.replacement;
    } else {
      text += c;
    }
  }
  if (!kind.split) {
    run(call, step + 1, text, place);
    return;
  }
  const std::string_view all = text;
  std::size_t begin = 0;
  while (begin < all.size()) {
    const std::size_t from =
        all.substr(begin).starts_with(kind.replacement) ? begin + kind.replacement.size() : begin;
    const std::size_t end = std::min(all.find(kind.replacement, from), all.size());
    run(call, step + 1, all.substr(begin, end - begin), begin == 0 ? place : Place::kInside);
    begin = end;
  }
}

}  // namespace sherd::tokenizer
