/// Forwards of several micro-batches without backwards: an evaluation's passes, where each pipeline
/// rank has one or more in flight.
#pragma once

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

/// Without messages. A rank that could continue with several chunks takes the last of them, so that
/// passes already begun end first and few micro-batches wait between two chunks of one rank. Each
/// chunk runs the micro-batches in their order.
Schedule forwards_only(const ChunkLayout& layout, int num_micro_batches);

}  // namespace sherd::schedule
