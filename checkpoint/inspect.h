/// What a checkpoint contains, for people and for programs: what `sherd inspect` prints.
///
/// Both functions read only the manifest, except for digests. Digests read and check everything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"

namespace sherd::checkpoint {

/// Lines of a table; the last one ends with a newline.
std::string inspect_table(const Checkpoint& checkpoint);
/// One JSON object: path, step, save_uuid, format_version, num_shards, state_bytes, files, tensors
/// (name, kind, dtype, shape, and digest if asked for), global.
std::string inspect_json(const Checkpoint& checkpoint, bool digests);

/// One per tensor of the manifest, in its order: XXH3-64 of the tensor's bytes, row-major and
/// little-endian, as 16 hex digits. It doesn't depend on the stage or the world that saved.
/// Memory   in_order_buffer_bytes(): at most 256 MiB.
/// Errors   DataError where bytes are damaged.
std::vector<std::string> tensor_digests(const Checkpoint& checkpoint);

}  // namespace sherd::checkpoint
