/// The parsed parts of a tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/bpe.h"
#include "engine/data/tokenizer/decoder.h"
#include "engine/data/tokenizer/named_tokens.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/pre_tokenizer.h"

namespace sherd::tokenizer {

struct Parts {
  Normalizer normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Bpe> bpe;
  std::unique_ptr<AddedTokenFinder> raw_tokens;         ///< searched in the original text
  std::unique_ptr<AddedTokenFinder> normalized_tokens;  ///< searched after the normaliser
  std::vector<DecoderStep> decoder;

  Bpe::Vocabulary vocabulary;  ///< the model's, as the file spells it
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> texts;  ///< by id; empty if no token has the id
  std::vector<bool> is_special;

  std::vector<NamedToken> named;
  std::optional<std::int32_t> beginning;
  std::optional<std::int32_t> end;
  std::optional<std::vector<std::int32_t>> before_document;  ///< none: the file doesn't define it
  std::array<std::uint8_t, 16> digest{};
  std::vector<std::string> notes;

  /// Initial cache entries of encoders; made for the first encoder, by any thread.
  const std::vector<CachedWord>& known_words() const {
    std::call_once(knows_words_,
                   [this] { known_words_ = BpeEncoder::tokens_as_words(*bpe, vocabulary); });
    return known_words_;
  }

 private:
  mutable std::once_flag knows_words_;
  mutable std::vector<CachedWord> known_words_;
};

/// `named`: tokens of the model that are among these are special, whatever the file says.
/// Errors   DataError: see tokenizer.h
std::unique_ptr<Parts> parse_tokenizer(std::string_view json, std::string_view where,
                                       const std::vector<std::string>& special_tokens = {},
                                       const std::vector<AddedToken>& named = {});

}  // namespace sherd::tokenizer
