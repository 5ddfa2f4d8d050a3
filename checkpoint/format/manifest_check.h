/// Checks that a manifest is consistent. `parse_manifest` checks what it read, and
/// `manifest_to_json` what it is about to write.
///
/// Cost     near-linear: one sort of all pieces. Memory: 40 bytes per piece.
/// Errors   DataError that names `file` and the first inconsistency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"

namespace sherd::checkpoint {

inline constexpr std::size_t kMaxNameLength = 255;
inline constexpr std::size_t kMaxKindLength = 64;
inline constexpr std::size_t kMaxDimensions = 8;
inline constexpr std::size_t kMaxTensors = 1 << 22;
inline constexpr std::size_t kMaxShards = 99999;         ///< five digits in a file's name
inline constexpr std::int64_t kMaxStep = 9'999'999'999;  ///< ten digits in a directory's name
/// Limits for a file's bytes outside its datasets: a fixed part, and a part per tensor and piece
/// that it describes. Our files stay below a hundredth of it. Without a limit a sparse file would
/// keep readers busy for days.
inline constexpr std::int64_t kMaxMetadataBytes = 64 << 20;
inline constexpr std::int64_t kMaxMetadataBytesPerPiece = 8 << 10;
inline constexpr std::size_t kMaxManifestBytes =
    1 << 28;  ///< 1024 ranks of a 10^12 parameters: 85 MB

/// Parts of letters, digits, '_' and '-', with single dots between them: nothing that means
/// anything to a file system, to HDF5 or to a terminal.
bool is_tensor_name(std::string_view name);
bool is_state_kind(std::string_view kind);  ///< [a-z_]+
bool is_save_uuid(std::string_view uuid);   ///< 32 lower-case hex digits

/// Datasets lie inside the file, ascending and without overlap; pieces follow one another.
void check_shard_places(const ShardInfo& shard, const std::string& file);
/// Checks everything: names, places, and the exact cover of every tensor.
void check_consistent(const Manifest& manifest, const std::string& file);

}  // namespace sherd::checkpoint
