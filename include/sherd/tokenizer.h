/// Text to token ids and back, with a Hugging Face tokenizer.json: the same ids as Hugging Face's
/// `tokenizers`.
///
///   const sherd::Tokenizer tokenizer("models/SmolLM2-135M");
///   const std::vector<std::int32_t> ids = tokenizer.encode("Hello");
///
/// Several threads may use one tokenizer; they encode one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

struct EncodeOptions {
  /// Put the tokens before the text that the tokenizer has for that, mostly one or none.
  bool add_beginning = false;
  /// Text that spells a special token becomes that token.
  bool special_tokens = true;
};

class SHERD_API Tokenizer {
 public:
  /// `folder` has tokenizer.json.
  /// Errors   DataError naming what is wrong or not supported
  explicit Tokenizer(const std::string& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;

  /// Errors   DataError if `text` isn't UTF-8
  std::vector<std::int32_t> encode(const std::string& text,
                                   const EncodeOptions& options = {}) const;
  /// UTF-8. Ids without a token are left out, and so are special tokens if `skip_special`.
  std::string decode(const std::vector<std::int32_t>& ids, bool skip_special = true) const;

  std::int64_t vocab_size() const;  ///< one more than the largest id
  std::optional<std::int32_t> id_of(const std::string& token) const;
  /// As the file spells it; "" if there is none.
  std::string token_of(std::int32_t id) const;
  /// The tokens that begin and end a text, if the folder names them.
  std::optional<std::int32_t> beginning() const;
  std::optional<std::int32_t> end() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sherd::SHERD_ABI
