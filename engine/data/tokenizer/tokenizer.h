/// Converts between text and token ids, exactly as Hugging Face's `tokenizers` does with the same
/// tokenizer.json.
///
///   text -> added tokens cut out -> normaliser -> added tokens that are normalised cut out
///        -> pre-tokenizer: words -> BPE: ids
///
/// Accepted  BPE, byte-level or with byte fallback (GPT-2, Llama, Qwen, Mistral, Gemma, Phi, OLMo,
///           DeepSeek, SmolLM, StarCoder, Pythia, ...), with the normalisers NFC, NFD, NFKC, NFKD,
///           Replace, Prepend, Sequence; the pre-tokenizers ByteLevel, Split, Digits,
///           Metaspace, Sequence; the decoders ByteLevel, ByteFallback, Fuse, Replace, Strip,
///           Metaspace, Sequence.
/// Refused   by name: WordPiece, Unigram, WordLevel, dropout, sub-word prefixes and suffixes, every
///           other part, unknown keys of parts, regular expressions that pattern_parser.h doesn't
///           accept, and folders that have only tokenizer.model.
/// Left out  the post-processor, which adds tokens around a document: encoding adds none, and
///           callers add them (`before_document`, `beginning`, `end`). Truncation and padding
///           (`notes`).
/// Files aren't trusted: any content gives ids or a DataError.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/named_tokens.h"

namespace sherd::tokenizer {

struct Parts;

/// Immutable; any thread may use it.
class Tokenizer {
 public:
  /// `folder` has tokenizer.json, and may have files that name special tokens (named_tokens.h).
  /// `special_tokens` are added as the library adds them: after all others, and found in the
  /// original text.
  /// Errors   DataError, one line with the file and the part that is wrong or refused.
  static std::shared_ptr<const Tokenizer> open(const std::string& folder,
                                               const std::vector<std::string>& special_tokens = {});
  /// From the text of a tokenizer.json; `where` names it in messages.
  static std::shared_ptr<const Tokenizer> parse(std::string_view json, std::string_view where,
                                                const std::vector<std::string>& special_tokens = {},
                                                std::vector<NamedToken> named = {});
  ~Tokenizer();

  /// One more than the largest id.
  std::int64_t vocab_size() const;
  std::optional<std::int32_t> id_of(std::string_view token) const;
  /// As the file spells it ("Ġthe"), or empty.
  std::string_view token_of(std::int32_t id) const;

  /// The text of `ids`, as UTF-8. Invalid bytes become U+FFFD, and ids without a token are left
  /// out, as in Hugging Face's library. `skip_special` leaves out special tokens.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  /// Bytes of text that a token represents at any position; 0 for special ones.
  std::int64_t num_bytes(std::int32_t id) const;

  /// Tokens that the folder names: "bos_token", "pad_token", ...
  const std::vector<NamedToken>& named_tokens() const;
  /// The tokens that begin and end a document, if they are named.
  std::optional<std::int32_t> beginning() const;
  std::optional<std::int32_t> end() const;
  /// Tokens that the library puts before a document by default: those of the post-processor in
  /// tokenizer.json. If it adds none: `beginning`, if tokenizer_config.json has "add_bos_token":
  /// true. Mostly one token or none.
  std::span<const std::int32_t> before_document() const;

  /// The spellings of special tokens.
  std::vector<std::string> special_tokens() const;

  /// XXH3-128 of tokenizer.json; it doesn't cover `special_tokens` that were added.
  const std::array<std::uint8_t, 16>& digest() const;
  /// Features that the file requests and Sherd leaves out, one sentence each.
  const std::vector<std::string>& notes() const;

 private:
  friend class Encoder;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Encodes text. Use one per thread: it has scratch memory (about 5 MB) and a cache of words. The
/// ids of a text don't depend on what was encoded before.
class Encoder {
 public:
  explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);
  ~Encoder();

  /// Appends the ids of one document to `ids`.
  /// Errors   DataError if `text` isn't UTF-8 ("not UTF-8 at byte 17"); `ids` then keeps its size.
  void encode(std::string_view text, SpecialTokens policy, std::vector<std::int32_t>& ids);

  /// The same for a part of a document. `trusted` has a byte for each byte of `text`. Text that
  /// spells a special token becomes that token only if all its bytes are trusted. (No known family
  /// searches special tokens in normalised text; such tokens are found only in completely trusted
  /// parts.) `continues`: other parts come before this one, so nothing is put before its first
  /// word.
  void encode_part(std::string_view text, std::string_view trusted, bool continues,
                   std::vector<std::int32_t>& ids);

 private:
  struct State;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<State> state_;

  struct Part {
    std::string_view text, trusted;  ///< trusted: empty if `policy` decides for all of the text
    SpecialTokens policy = SpecialTokens::kAsText;
    bool continues = false;
  };
  void encode(const Part& part, std::vector<std::int32_t>& ids);
};

}  // namespace sherd::tokenizer
