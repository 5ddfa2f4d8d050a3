/// The header of a safetensors file: where each tensor is. Nothing in the file is trusted.
///
///   8 bytes     length N of what follows, little-endian
///   N bytes     JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
///               "__metadata__": {text: text}}
///   the rest    the tensors' bytes, row-major, little-endian; offsets count from its beginning
/// Source: README.md of huggingface/safetensors. As strict as the format's own reader, and
/// stricter: a duplicate name is refused, and dimensions are at most 2^53.
///   cover      the tensors' bytes follow each other without hole or overlap, up to the file's end
///   sizes      shape x type is exactly the bytes between the offsets
///
/// Memory   allocations are bounded by the file's real size, not by the sizes it states.
/// Links    files belong to the user and may be links to elsewhere (Hugging Face's cache consists
///          of them); the target must be a plain file.
/// Errors   DataError naming the file and the tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"
#include "core/dtype.h"

namespace sherd::checkpoint {

inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;  ///< the format's own limit

struct SafetensorsTensor {
  std::string name;
  std::string type;  ///< as in the file: "BF16"
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< byte offset in the file
  std::int64_t bytes = 0;

  /// f32, bf16 and f16; empty for types that we don't compute with.
  std::optional<DType> dtype() const;
};

struct SafetensorsHeader {
  std::string path;
  std::int64_t header_bytes = 0;  ///< the 8 bytes and the N
  std::int64_t file_bytes = 0;
  std::vector<SafetensorsTensor> tensors;  ///< ascending in `begin`
};

/// `json` is a header's text, `data_bytes` what follows it.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& path);
SafetensorsHeader read_safetensors_header(Disk& disk, const std::string& path);

/// "F32", "BF16", "F16".
std::string_view safetensors_type(DType dtype);

/// Opens a plain file, or a link that leads to one.
File open_followed(Disk& disk, const std::string& path);
/// The whole file; DataError if it is larger than `max_bytes`.
std::string read_followed(Disk& disk, const std::string& path, std::int64_t max_bytes);

}  // namespace sherd::checkpoint
