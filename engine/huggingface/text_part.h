/// Models of several parts, of which we take the text part: a model of text and pictures, say.
///
/// config.json has the text part's settings in text_config, and its tensors stand among the others'
/// under longer names, in one of two spellings:
///
///   language_model.model.layers.0.x        language_model.lm_head.weight      transformers 4
///   model.language_model.layers.0.x        lm_head.weight                     transformers 5, in memory
///
/// What is exported is the text part alone, as the family that it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/interchange/safetensors_folder.h"

namespace sherd::huggingface {

/// The text of a config.json: its text part's, or as it is (`text_part` of config_reader.h).
std::string text_part_of(std::string text, const std::string& path);
/// Keys of the whole model that say nothing of its text part.
bool is_of_whole(std::string_view key);

/// How a folder calls the tensors of a model of text.
class TensorNames {
 public:
  /// `whole`: model_type of the model of several parts, or "" for a model of text alone.
  TensorNames(const checkpoint::SafetensorsFolder& folder, std::string_view whole);

  bool has_parts() const { return spelling_ != Spelling::kPlain; }
  std::string in_folder(std::string name) const;
  /// The name as a model of text alone has it; nothing for a tensor of another part.
  std::optional<std::string> of_text(std::string_view name) const;

 private:
  enum class Spelling { kPlain, kOutside, kInside };
  Spelling spelling_ = Spelling::kPlain;
  std::string whole_;
};

}  // namespace sherd::huggingface
