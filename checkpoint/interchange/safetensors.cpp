#include "checkpoint/interchange/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "core/lfs_pointer.h"
#include "core/shape_text.h"

namespace sherd::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::int64_t kLengthBytes = 8;

struct TypeBits {
  std::string_view name;
  std::int64_t bits;
};
// All types of the format, so that a file that also has types we don't support is still checked as
// a whole.
constexpr std::array<TypeBits, 22> kTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

std::int64_t bits_of(const JsonNode& type) {
  const std::string& name = type.text();
  for (const TypeBits& known : kTypes) {
    if (known.name == name) return known.bits;
  }
  type.refuse(fmt::format("is \"{}\", which isn't a type of the format", printable(name)));
}

std::vector<std::int64_t> numbers_of(const JsonNode& list) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < list.size(); ++i) numbers.push_back(list.element(i).integer(0));
  return numbers;
}

// `begin` counts from the data's beginning.
SafetensorsTensor tensor_of(const std::string& name, const JsonNode& entry) {
  SafetensorsTensor tensor;
  tensor.name = name;
  const JsonNode type = entry.member("dtype");
  const std::int64_t bits = bits_of(type);
  tensor.type = type.text();
  const JsonNode shape = entry.member("shape");
  tensor.shape = numbers_of(shape);
  const std::vector<std::int64_t> offsets = numbers_of(entry.member("data_offsets"));
  if (offsets.size() != 2 || offsets[1] < offsets[0]) {
    entry.refuse(
        fmt::format("has data_offsets {}; expected a begin and an end that isn't before it",
                    shape_text(offsets)));
  }
  tensor.begin = offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  std::int64_t numel = 1;
  bool overflows = false;
  for (const std::int64_t dimension : tensor.shape) {
    overflows = overflows || __builtin_mul_overflow(numel, dimension, &numel);
  }
  std::int64_t total_bits = 0;
  overflows = overflows || __builtin_mul_overflow(numel, bits, &total_bits);
  if (overflows || total_bits % 8 != 0 || total_bits / 8 != tensor.bytes) {
    entry.refuse(fmt::format("is {} of shape {}, but its data_offsets are {} bytes apart",
                             tensor.type, shape_text(tensor.shape), tensor.bytes));
  }
  return tensor;
}

void check_metadata(const JsonNode& metadata, const json& value) {
  if (value.is_null()) return;
  for (const auto& [key, text] : metadata.object().items()) {
    if (!text.is_string()) metadata.refuse("holds values that aren't texts");
  }
}

void check_cover(const SafetensorsHeader& header, std::int64_t data_bytes) {
  std::int64_t at = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != at) {
      throw DataError("{}: tensor \"{}\" begins at byte {} of the data; the one before ends at {}",
                      header.path, printable(tensor.name), tensor.begin, at);
    }
    at += tensor.bytes;  // each is at most 2^53, and the next must begin where this one ends
    if (at > data_bytes) break;
  }
  if (at == data_bytes) return;
  throw DataError("{}: its tensors have {}{} bytes, but {} follow the header{}", header.path, at,
                  at > data_bytes ? " or more" : "", data_bytes,
                  at > data_bytes ? "; was its download cut off?" : "");
}

}  // namespace

std::optional<DType> SafetensorsTensor::dtype() const {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (type == safetensors_type(dtype)) return dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF64:
    case DType::kI32:
    case DType::kU8:
      break;
  }
  SHERD_CHECK(false, "{} in a safetensors file of ours", name_of(dtype));
  __builtin_unreachable();
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes,
                                           const std::string& path) {
  const json parsed = parse_strict(text, path);
  const JsonNode root(parsed, path);
  SafetensorsHeader header;
  header.path = path;
  for (const auto& [name, value] : root.object().items()) {
    if (name.find('\0') != std::string::npos) {
      throw DataError("{}: the tensor name \"{}\" holds a zero byte", path, printable(name));
    }
    const JsonNode entry = root.member(name.c_str());
    if (name == kMetadata) {
      check_metadata(entry, value);
    } else {
      header.tensors.push_back(tensor_of(name, entry));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.bytes) < std::tie(b.begin, b.bytes);
  });
  check_cover(header, data_bytes);
  return header;
}

SafetensorsHeader read_safetensors_header(Disk& disk, const std::string& path) {
  const File file = open_followed(disk, path);
  const std::int64_t file_bytes = file.status().bytes;
  if (file_bytes < kLengthBytes) {
    throw DataError("{}: has {} bytes; a safetensors file has 8 at least", path, file_bytes);
  }
  if (file_bytes < kMostLfsPointerBytes) {
    std::string small(static_cast<std::size_t>(file_bytes), '\0');
    file.read_at(small.data(), file_bytes, 0);
    refuse_lfs_pointer(path, small, file_bytes);
  }
  std::array<unsigned char, kLengthBytes> length{};
  file.read_at(length.data(), kLengthBytes, 0);
  std::uint64_t stated = 0;
  for (int i = 7; i >= 0; --i) stated = stated << 8 | length[static_cast<std::size_t>(i)];
  const std::int64_t most = std::min(kMaxSafetensorsHeader, file_bytes - kLengthBytes);
  if (stated > static_cast<std::uint64_t>(most)) {
    throw DataError("{}: states a header of {} bytes; at most {} can be here{}", path, stated, most,
                    stated > static_cast<std::uint64_t>(kMaxSafetensorsHeader)
                        ? ""
                        : "; was its download cut off?");
  }
  std::string text(static_cast<std::size_t>(stated), '\0');
  file.read_at(text.data(), std::ssize(text), kLengthBytes);
  const std::int64_t header_bytes = kLengthBytes + std::ssize(text);
  SafetensorsHeader header = parse_safetensors_header(text, file_bytes - header_bytes, path);
  header.header_bytes = header_bytes;
  header.file_bytes = file_bytes;
  for (SafetensorsTensor& tensor : header.tensors) tensor.begin += header_bytes;
  return header;
}

namespace {

// A link that leads nowhere is what a cache has whose download ended early.
File open_or_name_link(Disk& disk, const std::string& path) {
  try {
    return File(disk, path, O_RDONLY | O_NONBLOCK);
  } catch (const DiskError& error) {
    if (error.error_number != ENOENT || !exists(disk, path)) throw;
    throw DataError("{}: is a link to a file that isn't there; was the download cut off?", path);
  }
}

}  // namespace

File open_followed(Disk& disk, const std::string& path) {
  File file = open_or_name_link(disk, path);
  if (file.status().kind == FileStatus::Kind::kFile) return file;
  throw DataError("{}: isn't a plain file", path);
}

std::string read_followed(Disk& disk, const std::string& path, std::int64_t max_bytes) {
  const File file = open_followed(disk, path);
  const std::int64_t bytes = file.status().bytes;
  if (bytes > max_bytes) {
    throw DataError("{}: has {} bytes; at most {} are expected", path, bytes, max_bytes);
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read_at(text.data(), bytes, 0);
  refuse_lfs_pointer(path, text, bytes);
  return text;
}

}  // namespace sherd::checkpoint
