/// A committed checkpoint's description of itself: manifest.json, the only file that a resume
/// trusts.
///
/// It names every other file with its exact size and checksums. For every element of every state
/// tensor it names the one place where it is stored. `parse_manifest` checks all of that before it
/// allocates anything by a stated size. What it returns is consistent:
///   cover      the pieces of all shards cover every tensor exactly, without overlap or hole. A
///              tensor's bands divide its columns, and each band is covered
///   places     datasets lie inside their files and don't overlap, pieces inside their datasets
///   names      file names follow from the shard's number; no path is ever taken from a file
/// Format and its reasons: docs/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

/// A checkpoint of a newer format, which isn't damaged.
class NewerFormat : public DataError {
 public:
  using DataError::DataError;
};

/// The newest version that is read. Version 1 is written unless a piece belongs to a band of
/// columns, which needs version 2, or a tensor is of u8, which needs version 3. Version 1 will always
/// be readable.
inline constexpr int kFormatVersion = 3;
inline constexpr std::int64_t kBlockBytes = 4 << 20;  ///< per checksum, and per write
inline constexpr std::int64_t kFileAlignment = 4096;  ///< of datasets in a shard, for direct writes

/// All elements of one kind that a shard holds: consecutive bytes of the file, and one HDF5 dataset
/// "/<kind>" of one dimension.
struct ShardDataset {
  std::string kind;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;
  std::int64_t offset = 0;               ///< bytes, a multiple of kFileAlignment
  std::vector<std::uint64_t> checksums;  ///< XXH3-64 of each kBlockBytes, the last one shorter

  std::int64_t bytes() const { return numel * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Consecutive elements of one tensor, or of a band of its columns, in the dataset of the tensor's
/// kind.
struct ShardPiece {
  int tensor = 0;                  ///< index into Manifest::tensors
  std::int64_t first_element = 0;  ///< index in the band
  std::int64_t count = 0;
  std::int64_t position = 0;  ///< index in the dataset
  sharding::Band band{};
};

struct ShardInfo {
  std::int64_t bytes = 0;               ///< of the file
  std::uint64_t metadata_checksum = 0;  ///< XXH3-64 of every byte outside the datasets, in order
  std::vector<ShardDataset> datasets;   ///< ascending in offset
  std::vector<ShardPiece> pieces;       ///< by dataset, then by position; without gaps
};

struct Manifest {
  std::string save_uuid;  ///< 32 hex digits; also an attribute of every shard
  std::int64_t step = 0;  ///< updates and skips done: the step at which a resume begins
  /// State that is the same on every rank: an object that the engine fills and reads back (scaler,
  /// data position, recipe, vocabulary, ...).
  std::shared_ptr<const nlohmann::json> global;
  std::vector<sharding::StateTensor> tensors;
  std::vector<ShardInfo> shards;  ///< shard r of W is file shard_name(r, W)
  std::int64_t index_bytes = 0;   ///< of index.h5
  std::uint64_t index_checksum = 0;
};

/// The format version that a shard or a manifest states.
bool has_bands(const ShardInfo& shard);
int format_version(const ShardInfo& shard);
int format_version(const Manifest& manifest);

std::string shard_name(int shard, int num_shards);   ///< shard-00003-of-00004.h5
std::string step_directory_name(std::int64_t step);  ///< step-0000001200

/// One shard's part of the manifest, as its writer passes it to rank 0.
std::string shard_to_json(const ShardInfo& shard);
ShardInfo parse_shard(std::string_view text, const std::string& file);

/// The text of manifest.json, including its own checksum.
std::string manifest_to_json(const Manifest& manifest);
/// Errors   DataError naming `file` and what is inconsistent.
Manifest parse_manifest(std::string_view text, const std::string& file);

}  // namespace sherd::checkpoint
