/// Reads any elements of a checkpoint's parameters, in blocks whose checksums are verified.
///
/// Memory   for each reader: blocks of the checkpoint (one of 4 MiB for each shard, up to 64,
///          divided by the number of readers, but at least 16 blocks)
#pragma once

#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/huggingface/strided_box.h"
#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

/// One of `num_readers` readers. `parameters` are the checkpoint's, as f32 (SHERD_CHECK); it
/// outlives the reader.
/// Errors   DataError, when reading, for damaged blocks.
ReadElements elements_of_checkpoint(const checkpoint::Checkpoint& checkpoint,
                                    const std::vector<NamedShape>& parameters, int num_readers);

}  // namespace sherd::huggingface
