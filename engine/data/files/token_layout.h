/// The position and width of the tokens in a file. They come from the file's first bytes, an index
/// file next to it, or the user; they are never guessed.
///
///   Sherd      64-byte header below; tokens; document ends
///   llm.c      256 int32: 20240520 and version 1 (2 bytes a token), or 20240801 and 7 (4 bytes)
///   llmq       1,024 bytes: "BIN.TOK\n", int32 version 2, bytes per token, count, ...; tokens;
///              masks
///   Megatron   X.bin is raw; X.idx next to it begins with "MMIDIDX" and names type and sequences
///   datatrove  X is raw; X.index next to it has document ends (u64); the user must give the width
///   nanoGPT    raw, 2 bytes a token unless the user gives another width
///
/// All little-endian. Sherd's header, version 1:
///
///   byte 0   "SHERDTOK"           24  u64 documents
///        8   u32 version          32  u64 vocab_size: all ids are smaller
///       12   u32 bytes per token  40  16 bytes: XXH3-128 of the tokenizer.json
///       16   u64 tokens           56  u64 zero
///
/// Then come the tokens, zeros up to a multiple of 8 bytes, and a u64 for every document: one past
/// its last token. The last u64 is the number of tokens.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/data/mapped_file.h"

namespace sherd::data {

inline constexpr std::int64_t kTokenHeaderBytes = 64;

struct TokenHeader {
  std::int64_t token_bytes = 2;
  std::int64_t num_tokens = 0;
  std::int64_t num_documents = 0;
  std::int64_t vocab_size = 0;
  std::array<std::uint8_t, 16> tokenizer_digest{};

  std::array<std::uint8_t, kTokenHeaderBytes> bytes() const;
  /// Where the document ends begin.
  std::int64_t ends_offset() const;
};

/// What defines the document ends.
enum class DocumentEnds : std::uint8_t { kNobody, kHeader, kMegatron, kDatatrove };

struct TokenLayout {
  std::int64_t offset = 0;  ///< of the first token, in bytes
  std::int64_t num_tokens = 0;
  std::int64_t token_bytes = 2;         ///< 1, 2, 4 or 8
  std::optional<TokenHeader> header{};  ///< Sherd's own
  DocumentEnds ends = DocumentEnds::kNobody;
  bool width_is_assumed = false;  ///< a raw file, and the user gave no token width
};

/// Whether its first bytes identify a token file.
bool has_token_header(const MappedFile& file);

/// `token_bytes`: the width given by the user, or 0.
/// Errors   DataError: a size that doesn't fit the header, document ends that don't ascend, a type
///          that isn't a token type, a width that contradicts the file, a raw file whose tokens
///          seem to have another width.
TokenLayout read_token_layout(const MappedFile& file, std::int64_t token_bytes);

/// One past each document's last token; empty if the layout defines no documents.
/// Errors   DataError: an index of documents that doesn't fit its sequences
std::vector<std::int64_t> read_document_ends(const MappedFile& file, const TokenLayout& layout);

}  // namespace sherd::data
