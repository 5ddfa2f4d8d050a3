/// Encodes many texts in parallel, on all cores.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::tokenizer {

/// Calls `encode(i, encoder)` once for every i below `count`, in any order; each thread has its own
/// encoder.
/// Errors   rethrows the error of the lowest i that threw, after all have ended; TrainingError if
///          the machine refuses a thread
void encode_each(std::size_t count, const std::shared_ptr<const Tokenizer>& tokenizer,
                 const std::function<void(std::size_t i, Encoder& encoder)>& encode);

}  // namespace sherd::tokenizer
