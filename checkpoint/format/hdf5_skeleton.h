/// The HDF5 file of a shard without its data: libhdf5 lays the file out in memory, and we write it.
///
///   /<kind>               one dataset of one dimension per kind, contiguous, at a multiple of
///                         kFileAlignment, allocated at once and never filled
///   /tensor-names         for people: names of the tensors that the shard has pieces of
///   /piece-table/<kind>   for people: a row per piece: row of /tensor-names, first element, count,
///                         position in /<kind>; and first column, columns, where any piece is of
///                         a band of columns
///   attributes            format_version, save_uuid, shard, num_shards, step
///
/// No links, no filters, no variable lengths, no times: the same shard has the same bytes. bf16 is
/// a float type of its own (8 exponent bits, 7 of mantissa), which HDF5 tools convert to float32.
///
/// Cost     memory and time follow the number of kinds and pieces, not the size of the data.
/// Threads  takes hdf5_lock().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace sherd::checkpoint {

struct ShardLabel {
  std::string save_uuid;
  std::int64_t step = 0;
  int shard = 0;
  int num_shards = 1;
};

struct FileRange {
  std::int64_t offset = 0;
  std::string bytes;
};

struct Hdf5Skeleton {
  std::int64_t file_bytes = 0;
  std::vector<std::int64_t> offsets;  ///< of the data of each dataset, in the order given
  /// Every byte of the file outside the datasets, ascending; together they are what
  /// ShardInfo::metadata_checksum covers.
  std::vector<FileRange> metadata;
};

/// Reads kind, type and numel of `shard.datasets`, all of them with elements, and `shard.pieces`.
Hdf5Skeleton build_hdf5_skeleton(const ShardLabel& label, const ShardInfo& shard,
                                 const std::vector<sharding::StateTensor>& tensors);

}  // namespace sherd::checkpoint
