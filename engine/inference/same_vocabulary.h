/// Whether two models mean the same tokens.
#pragma once

#include "engine/inference/trained_model.h"

namespace sherd::engine {

struct ModelVocabulary {
  std::string path;  ///< for messages
  const Recipe& recipe;
  const std::vector<char32_t>& characters;
};
ModelVocabulary vocabulary_of(const TrainedModel& model);

/// Compares the characters of models of characters; else, in tokenizer.json, the ids of tokens and of
/// added tokens. A model without tokenizer.json isn't compared: only the size of its vocabulary is
/// known.
/// `why` ends the message: "models of one vocabulary can be merged".
/// Errors   UsageError naming the first token that differs; DataError.
void require_same_vocabulary(const ModelVocabulary& first, const ModelVocabulary& other,
                             std::string_view why);

}  // namespace sherd::engine
