/// Whether two models mean the same tokens.
#pragma once

#include "engine/inference/trained_model.h"

namespace sherd::engine {

/// Compares the characters of models of characters; else, in tokenizer.json, the ids of tokens and of
/// added tokens. A model without tokenizer.json isn't compared: only the size of its vocabulary is
/// known.
/// Errors   UsageError naming the first token that differs; DataError.
void require_same_vocabulary(const TrainedModel& first, const TrainedModel& other);

}  // namespace sherd::engine
