/// Where the tokens lie in a file, and how wide they are: known by the file's first bytes, by the
/// file beside it, or because the user says so; never guessed.
///
///   Sherd      64-byte header below; tokens; document ends
///   llm.c      256 int32: 20240520 and version 1 (2 bytes a token), or 20240801 and 7 (4 bytes)
///   llmq       1,024 bytes: "BIN.TOK\n", int32 version 2, bytes per token, count, ...; tokens; masks
///   Megatron   X.bin is raw, X.idx beside it begins with "MMIDIDX" and names type and sequences
///   datatrove  X is raw, X.index beside it has document ends (u64); the width must be said
///   nanoGPT    raw, 2 bytes a token unless another width is said
///
/// All little-endian. Sherd's header, version 1:
///
///   byte 0   "SHERDTOK"           24  u64 documents
///        8   u32 version          32  u64 vocab_size: ids are below it
///       12   u32 bytes per token  40  16 bytes: XXH3-128 of the tokenizer.json
///       16   u64 tokens           56  u64 zero
///
/// then the tokens, zeros up to a multiple of 8 bytes, and for every document a u64, the token behind
/// its last. The last is the number of tokens.
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

/// Who says where documents end.
enum class DocumentEnds : std::uint8_t { kNobody, kHeader, kMegatron, kDatatrove };

struct TokenLayout {
  std::int64_t offset = 0;  ///< of the first token, in bytes
  std::int64_t num_tokens = 0;
  std::int64_t token_bytes = 2;         ///< 1, 2, 4 or 8
  std::optional<TokenHeader> header{};  ///< Sherd's own
  DocumentEnds ends = DocumentEnds::kNobody;
  bool width_is_assumed = false;  ///< a raw file, and nobody said how wide its tokens are
};

/// Whether its first bytes say that it is a file of tokens.
bool has_token_header(const MappedFile& file);

/// `token_bytes`: what the user says, 0 if nothing.
/// Errors   DataError: a size that doesn't fit the header, document ends that don't ascend, a type
///          that isn't one of tokens, a width that contradicts the file, a raw file of one width that
///          looks like the other.
TokenLayout read_token_layout(const MappedFile& file, std::int64_t token_bytes);

/// The token behind each document's last; empty if nobody says.
/// Errors   DataError: an index of documents that doesn't fit its sequences
std::vector<std::int64_t> read_document_ends(const MappedFile& file, const TokenLayout& layout);

}  // namespace sherd::data
