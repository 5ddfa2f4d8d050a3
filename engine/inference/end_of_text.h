/// Where the texts of a trained model end.
///
/// A text ends at what the folder names from which the run began (generation_config.json, else config.json); where
/// there is none, at the end token of the tokenizer, or what the tokenizer's own folder names. An answer of a
/// conversation also ends at the special token that the chat template puts behind answers.
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
  std::string answer_token;               ///< as it is spelled
  std::optional<std::int32_t> beginning;  ///< of a document, by the tokenizer

  /// Both, each once.
  std::vector<std::int32_t> all() const;
  bool answers_end_elsewhere() const;  ///< than texts
};

/// Ends of texts alone.
std::vector<std::int32_t> end_of_text(const TrainedModel& trained);
/// All of it. A template that isn't known here says nothing about answers.
EndOfText ends_of(const TrainedModel& trained);

}  // namespace sherd::engine
