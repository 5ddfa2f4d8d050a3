/// Where the texts of a trained model end.
///
/// A text ends at the end tokens of the folder that the run started from (generation_config.json,
/// else config.json). Without these, it ends at the end token of the tokenizer or of the
/// tokenizer's folder. In a conversation an answer also ends at the special token that the chat
/// template puts after answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/inference/trained_model.h"

namespace sherd::engine {

struct EndOfText {
  std::vector<std::int32_t> of_text;
  std::optional<std::int32_t> of_answer;  ///< none: no template, or other text ends an answer
  std::string answer_token;               ///< its text
  std::optional<std::int32_t> beginning;  ///< the tokenizer's beginning-of-document token

  /// Both, each once.
  std::vector<std::int32_t> all() const;
  bool answers_end_elsewhere() const;  ///< than texts
};

/// The end tokens of texts only.
std::vector<std::int32_t> end_of_text(const TrainedModel& trained);
/// The whole EndOfText. Unknown templates give no end of answers.
EndOfText ends_of(const TrainedModel& trained);

}  // namespace sherd::engine
