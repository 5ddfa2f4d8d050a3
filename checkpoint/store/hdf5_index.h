/// index.h5: every tensor of a checkpoint as a whole, for people and their HDF5 tools.
///
///   /tensors/<name>/<kind>   a virtual dataset of the tensor's shape and type, pieced together
///                            from the shards' /<kind> datasets
///   attributes               format_version, save_uuid, step, note
///
/// Shards are named without a folder, so a checkpoint can be moved as a whole. HDF5 silently reads
/// a source that it can't open as the fill value, and doesn't detect damage. So the fill is NaN,
/// `sherd verify` finds damage, and nothing in Sherd ever reads this file.
///
/// A band of columns is mapped as the boxes of its rows. A range that doesn't begin or end with a
/// row becomes several boxes of the tensor, at most 2 x dimensions - 1. Each is a range of the
/// shard's dataset.
///
/// Cost     made in memory: about 100 bytes per box; some microseconds per box.
/// Threads  takes hdf5_lock().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace sherd::checkpoint {

/// The bytes of index.h5; the manifest's `index_bytes` and `index_checksum` aren't used.
std::string build_hdf5_index(const Manifest& manifest);

/// A part of a tensor that is a box in its shape (HDF5: a hyperslab) and consecutive row-major.
struct Hyperslab {
  std::vector<std::int64_t> start, count;
  std::int64_t first_element = 0, numel = 0;
};
/// Elements [first, first + count) of a tensor, divided into such boxes, in order.
std::vector<Hyperslab> hyperslabs_of(const std::vector<std::int64_t>& shape, std::int64_t first,
                                     std::int64_t count);

}  // namespace sherd::checkpoint
