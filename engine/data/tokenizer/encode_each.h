/// Many texts at once, on all cores.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::tokenizer {

/// Calls `encode(i, encoder)` once for every i below `count`, in no order, each thread with an encoder of its own.
/// Errors   of the lowest i that threw, when all have ended; TrainingError if the machine refuses a thread
void encode_each(std::size_t count, const std::shared_ptr<const Tokenizer>& tokenizer,
                 const std::function<void(std::size_t i, Encoder& encoder)>& encode);

}  // namespace sherd::tokenizer
