/// Inputs and targets of multi-token prediction: those some positions ahead, in the same document.
///
/// A token whose row or document ends before has no target; its input is then its own.
#pragma once

#include "engine/data/batch.h"

namespace sherd::data {

/// Fills batch.ahead from the rest of the batch, whose rows are whole.
void fill_tokens_ahead(const Batch& batch, std::int64_t seq_length);

}  // namespace sherd::data
