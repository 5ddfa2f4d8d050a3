/// Forwards of several micro-batches without backwards: an evaluation's passes, of which the ranks of a pipeline
/// have one each under way, or more.
#pragma once

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

/// Without messages. A rank that could go on with several chunks takes the last of them, so that what has begun
/// ends first: between two chunks of one rank, few micro-batches wait. Each chunk runs the micro-batches in
/// their order.
Schedule forwards_only(const ChunkLayout& layout, int num_micro_batches);

}  // namespace sherd::schedule
