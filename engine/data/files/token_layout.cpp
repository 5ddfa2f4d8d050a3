#include "engine/data/files/token_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>

#include "core/error.h"

namespace sherd::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "SHERDTOK";
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::int64_t kLlmHeaderBytes = 1024;
// Magic 9, version 8, type 1, sequences 8, documents 8.
constexpr std::int64_t kMegatronFixed = 34;

using Bytes = std::span<const std::uint8_t>;

/// A number out of the file; `offset + sizeof(T)` is inside.
template <class T>
T number(Bytes bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

bool begins_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), bytes.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

[[noreturn]] void throw_cut(const MappedFile& file, std::string_view kind) {
  throw DataError(
      "{}: has {} bytes, which doesn't fit its {} header; the file is cut short or damaged.",
      file.path(), file.bytes().size(), kind);
}

void check_ends(const MappedFile& file, Bytes ends, std::uint64_t num_tokens) {
  std::uint64_t previous = 0;
  for (std::size_t offset = 0; offset < ends.size(); offset += 8) {
    const auto end = number<std::uint64_t>(ends, static_cast<std::int64_t>(offset));
    if (end < previous) {
      throw DataError("{}: document {} ends before it begins.", file.path(), offset / 8);
    }
    previous = end;
  }
  if (previous == num_tokens) return;
  throw DataError("{}: its documents end at token {}, but it has {} tokens.", file.path(), previous,
                  num_tokens);
}

TokenLayout sherd_layout(const MappedFile& file) {
  const Bytes bytes = file.bytes();
  if (std::ssize(bytes) < kTokenHeaderBytes) throw_cut(file, "Sherd");
  const auto version = number<std::uint32_t>(bytes, 8);
  const auto width = number<std::uint32_t>(bytes, 12);
  if (version != 1 || (width != 2 && width != 4)) {
    throw DataError("{}: version {} of Sherd's token files with {} bytes a token isn't supported.",
                    file.path(), version, width);
  }
  const auto num_tokens = number<std::uint64_t>(bytes, 16);
  const auto num_documents = number<std::uint64_t>(bytes, 24);
  if (num_tokens > bytes.size() || num_documents > bytes.size()) throw_cut(file, "Sherd");
  TokenHeader header{.token_bytes = width,
                     .num_tokens = static_cast<std::int64_t>(num_tokens),
                     .num_documents = static_cast<std::int64_t>(num_documents),
                     .vocab_size = number<std::int64_t>(bytes, 32)};
  std::copy_n(bytes.begin() + 40, header.tokenizer_digest.size(), header.tokenizer_digest.begin());
  if (header.ends_offset() + 8 * header.num_documents != std::ssize(bytes))
    throw_cut(file, "Sherd");
  check_ends(file, bytes.subspan(static_cast<std::size_t>(header.ends_offset())), num_tokens);
  return {kTokenHeaderBytes, header.num_tokens, width, header, DocumentEnds::kHeader};
}

TokenLayout llm_c_layout(const MappedFile& file, std::int64_t width) {
  if (std::ssize(file.bytes()) < kLlmHeaderBytes) throw_cut(file, "llm.c");
  const auto count = number<std::int32_t>(file.bytes(), 8);
  if (count < 0 || kLlmHeaderBytes + width * count != std::ssize(file.bytes())) {
    throw_cut(file, "llm.c");
  }
  return {kLlmHeaderBytes, count, width};
}

TokenLayout llmq_layout(const MappedFile& file) {
  const Bytes bytes = file.bytes();
  if (std::ssize(bytes) < kLlmHeaderBytes) throw_cut(file, "llmq");
  const auto version = number<std::int32_t>(bytes, 8);
  const auto width = number<std::int32_t>(bytes, 12);
  const auto count = number<std::int32_t>(bytes, 16);
  const bool has_masks = number<std::int32_t>(bytes, 24) != 0;
  if (version != 2 || width != 4) {
    throw DataError("{}: version {} of llmq's files with {} bytes a token isn't supported.",
                    file.path(), version, width);
  }
  if (has_masks) {
    throw DataError("{}: has loss masks, which Sherd would leave out; write it without them.",
                    file.path());
  }
  if (count < 0 || kLlmHeaderBytes + std::int64_t{4} * count != std::ssize(bytes)) {
    throw_cut(file, "llmq");
  }
  return {kLlmHeaderBytes, count, 4};
}

std::int64_t megatron_width(const MappedFile& index, int type) {
  switch (type) {
    case 1:
      return 1;
    case 8:
      return 2;
    case 4:
      return 4;
    case 5:
      return 8;
    default:
      throw DataError("{}: its type {} isn't a token type (uint8, uint16, int32, int64).",
                      index.path(), type);
  }
}

/// Sequences must be contiguous and fill the file.
TokenLayout megatron_layout(const MappedFile& file, const MappedFile& index) {
  constexpr std::int64_t kFixed = kMegatronFixed;
  const Bytes bytes = index.bytes();
  if (std::ssize(bytes) < kFixed) throw_cut(index, "Megatron");
  const auto version = number<std::uint64_t>(bytes, 9);
  if (version != 1) {
    throw DataError("{}: version {} of Megatron's index isn't supported.", index.path(), version);
  }
  const std::int64_t width = megatron_width(index, bytes[17]);
  const auto num_sequences = number<std::uint64_t>(bytes, 18);
  const auto num_documents = number<std::uint64_t>(bytes, 26);
  if (num_sequences > bytes.size() || num_documents > bytes.size()) throw_cut(index, "Megatron");
  const auto count = static_cast<std::int64_t>(num_sequences);
  const std::int64_t without_modes =
      kFixed + 12 * count + 8 * static_cast<std::int64_t>(num_documents);
  if (std::ssize(bytes) != without_modes && std::ssize(bytes) != without_modes + count) {
    throw_cut(index, "Megatron");
  }
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = number<std::int32_t>(bytes, kFixed + 4 * i);
    const auto begin = number<std::int64_t>(bytes, kFixed + 4 * count + 8 * i);
    if (length < 0 || begin != end) {
      throw DataError("{}: sequence {} doesn't begin where the one before ends.", index.path(), i);
    }
    end += width * length;
  }
  if (end != std::ssize(file.bytes())) {
    throw DataError("{}: has {} bytes, but its index {} describes {}.", file.path(),
                    file.bytes().size(), index.path(), end);
  }
  return {0, end / width, width, {}, DocumentEnds::kMegatron};
}

// Document indices count sequences: the first is 0, each begins a document, the last ends all.
std::vector<std::int64_t> megatron_ends(const MappedFile& index) {
  const Bytes bytes = index.bytes();
  const auto num_sequences = number<std::int64_t>(bytes, 18);
  const auto num_documents = number<std::int64_t>(bytes, 26);
  std::vector<std::int64_t> ends;
  std::int64_t sequence = 0, token = 0;
  for (std::int64_t i = 1; i < num_documents; ++i) {
    const auto end = number<std::int64_t>(bytes, kMegatronFixed + 12 * num_sequences + 8 * i);
    if (end < sequence || end > num_sequences) {
      throw DataError("{}: document {} ends at sequence {} of {}.", index.path(), i - 1, end,
                      num_sequences);
    }
    for (; sequence < end; ++sequence) {
      token += number<std::int32_t>(bytes, kMegatronFixed + 4 * sequence);
    }
    ends.push_back(token);
  }
  if (sequence < num_sequences) {
    throw DataError("{}: its documents end at sequence {} of {}.", index.path(), sequence,
                    num_sequences);
  }
  return ends;
}

TokenLayout raw_layout(const MappedFile& file, std::int64_t width) {
  const Bytes bytes = file.bytes();
  if (std::ssize(bytes) % width != 0) {
    throw DataError(
        "{}: has {} bytes, but data.format bin is {} bytes per token; the file is cut "
        "short or not of this format.",
        file.path(), bytes.size(), width);
  }
  return {0, std::ssize(bytes) / width, width};
}

/// Refuses what is obviously of the other width: wide tokens have zeros above, and narrow ones
/// taken in pairs make ids that no vocabulary has.
void check_width(const MappedFile& file, const TokenLayout& layout) {
  constexpr std::int64_t kSample = 4096;
  const std::int64_t sample = std::min(layout.num_tokens / 2 * 2, kSample);
  if (sample < 64) return;
  std::int64_t num_zero_odd = 0;
  std::int64_t num_zero_even = 0;
  for (std::int64_t i = 0; i < sample; i += 2) {
    num_zero_even += number<std::uint16_t>(file.bytes(), 2 * i) == 0;
    num_zero_odd += number<std::uint16_t>(file.bytes(), 2 * i + 2) == 0;
  }
  if (num_zero_odd == sample / 2 && num_zero_even < sample / 4) {
    throw DataError(
        "{}: every second 2-byte token is 0, so this seems to have 4 bytes a token; set "
        "data.token_bytes to 4.",
        file.path());
  }
}

std::optional<MappedFile> beside(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return std::optional<MappedFile>(std::in_place, path);
}

/// Bytes per token of llm.c's files; 0 if this is none.
std::int64_t llm_c_width(Bytes bytes) {
  if (bytes.size() < 8) return 0;
  const auto magic = number<std::int32_t>(bytes, 0);
  const auto version = number<std::int32_t>(bytes, 4);
  return magic == 20240520 && version == 1 ? 2 : magic == 20240801 && version == 7 ? 4 : 0;
}

/// By magic; nothing if there is none.
std::optional<TokenLayout> known_layout(const MappedFile& file) {
  const Bytes bytes = file.bytes();
  if (begins_with(bytes, kMagic)) return sherd_layout(file);
  if (begins_with(bytes, kLlmqMagic)) return llmq_layout(file);
  if (const std::int64_t width = llm_c_width(bytes); width > 0) return llm_c_layout(file, width);
  const std::string& path = file.path();
  if (path.ends_with(".bin")) {
    const auto index = beside(path.substr(0, path.size() - 4) + ".idx");
    if (index && begins_with(index->bytes(), kMegatronMagic)) return megatron_layout(file, *index);
  }
  return std::nullopt;
}

}  // namespace

std::array<std::uint8_t, kTokenHeaderBytes> TokenHeader::bytes() const {
  std::array<std::uint8_t, kTokenHeaderBytes> result{};
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(result.data() + offset, &value, sizeof(value));
  };
  std::copy(kMagic.begin(), kMagic.end(), result.begin());
  put(8, std::uint32_t{1});
  put(12, static_cast<std::uint32_t>(token_bytes));
  put(16, static_cast<std::uint64_t>(num_tokens));
  put(24, static_cast<std::uint64_t>(num_documents));
  put(32, static_cast<std::uint64_t>(vocab_size));
  put(40, tokenizer_digest);
  return result;
}

std::int64_t TokenHeader::ends_offset() const {
  return (kTokenHeaderBytes + token_bytes * num_tokens + 7) / 8 * 8;
}

bool has_token_header(const MappedFile& file) {
  const Bytes bytes = file.bytes();
  return begins_with(bytes, kMagic) || begins_with(bytes, kLlmqMagic) || llm_c_width(bytes) > 0;
}

TokenLayout read_token_layout(const MappedFile& file, std::int64_t token_bytes) {
  if (const std::optional<TokenLayout> known = known_layout(file)) {
    if (token_bytes == 0 || token_bytes == known->token_bytes) return *known;
    throw DataError(
        "{}: has {} bytes a token by its header, but data.token_bytes is {}; leave it out.",
        file.path(), known->token_bytes, token_bytes);
  }
  const auto ends = beside(file.path() + ".index");  // datatrove
  if (ends && token_bytes == 0) {
    throw DataError("{}: datatrove's files don't say how wide a token is; set data.token_bytes.",
                    file.path());
  }
  TokenLayout layout = raw_layout(file, token_bytes == 0 ? 2 : token_bytes);
  layout.width_is_assumed = token_bytes == 0;
  if (layout.token_bytes == 2) check_width(file, layout);
  if (ends) {
    if (ends->bytes().size() % 8 != 0) throw_cut(*ends, "datatrove");
    check_ends(*ends, ends->bytes(), static_cast<std::uint64_t>(layout.num_tokens));
    layout.ends = DocumentEnds::kDatatrove;
  }
  return layout;
}

std::vector<std::int64_t> read_document_ends(const MappedFile& file, const TokenLayout& layout) {
  const std::string& path = file.path();
  const auto read = [](Bytes bytes) {
    std::vector<std::int64_t> ends(bytes.size() / 8);
    std::memcpy(ends.data(), bytes.data(), 8 * ends.size());
    return ends;
  };
  switch (layout.ends) {
    case DocumentEnds::kHeader:
      return read(file.bytes().subspan(static_cast<std::size_t>(layout.header->ends_offset())));
    case DocumentEnds::kMegatron:
      return megatron_ends(MappedFile(path.substr(0, path.size() - 4) + ".idx"));
    case DocumentEnds::kDatatrove:
      return read(MappedFile(path + ".index").bytes());
    case DocumentEnds::kNobody:
      return {};
  }
  return {};
}

}  // namespace sherd::data
