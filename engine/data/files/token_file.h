/// One file of text, read as token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/mapped_file.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

class TokenFile {
 public:
  virtual ~TokenFile() = default;

  virtual const std::string& path() const = 0;
  virtual std::int64_t num_tokens() const = 0;

  /// Writes the ids of tokens [first, first + count) to `ids`. Any thread may call.
  /// Errors   DataError if the file has shrunk since it was opened, or an id is outside the
  ///          vocabulary. A range outside the file is a bug in Sherd (SHERD_CHECK).
  virtual void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const = 0;

  /// One past the last token of each document, non-decreasing, ending with num_tokens(). A text is
  /// one document. Empty if a token file doesn't define documents.
  virtual std::vector<std::int64_t> document_ends() const { return {num_tokens()}; }

  /// For ExampleKind::kLabelled: 1 for each document of a wanted answer, else 0. Otherwise empty.
  virtual std::vector<std::uint8_t> document_labels() const { return {}; }

  /// Whether some tokens are inputs without being targets, such as the questions of a conversation.
  virtual bool has_untrained() const { return false; }
  /// 1 for each of these tokens that is a target, else 0. Only if has_untrained().
  virtual void read_trained(std::int64_t first, std::int64_t count, std::uint8_t* trained) const;
};

/// CHECKs that `file` has tokens [first, first + count). Every `read` calls this first.
void check_range(const TokenFile& file, std::int64_t first, std::int64_t count);

/// Each byte is a token.
std::unique_ptr<const TokenFile> make_byte_file(std::shared_ptr<const MappedFile> file,
                                                std::int64_t vocab_size);
/// A token file (token_layout.h). `token_bytes`: width of tokens in a file without a header, or 0.
/// `tokenizer`: null, or the tokenizer that must have made the file, if the file names one.
std::unique_ptr<const TokenFile> make_token_file(std::shared_ptr<const MappedFile> file,
                                                 std::int64_t vocab_size, std::int64_t token_bytes,
                                                 const tokenizer::Tokenizer* tokenizer);
/// Ids that are in memory.
std::unique_ptr<const TokenFile> make_id_file(std::string path, std::vector<std::int32_t> ids);
/// Each character is a token: its index in `characters`, sorted code points that cover the file.
std::unique_ptr<const TokenFile> make_character_file(std::shared_ptr<const MappedFile> file,
                                                     const std::vector<char32_t>& characters);

}  // namespace sherd::data
