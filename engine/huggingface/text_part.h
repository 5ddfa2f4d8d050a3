/// Models of several parts, such as text and pictures; Sherd uses only the text part.
///
/// config.json has the text part's settings in text_config. Its tensors have longer names than in a
/// text model, in one of two spellings:
///
///   language_model.model.layers.0.x    language_model.lm_head.weight    transformers 4
///   model.language_model.layers.0.x    lm_head.weight                   transformers 5, in memory
///
/// Exports contain only the text part, as a model of its own family.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/interchange/safetensors_folder.h"

namespace sherd::huggingface {

/// The config.json of the text part; for a text model, `text` unchanged (`text_part` of
/// config_reader.h).
std::string text_part_of(std::string text, const std::string& path);
/// Whether a key of the whole model doesn't concern its text part.
bool is_of_whole(std::string_view key);

/// The names that a folder uses for the tensors of a text model.
class TensorNames {
 public:
  /// `whole`: model_type of the multi-part model, or "" for a text-only model.
  TensorNames(const checkpoint::SafetensorsFolder& folder, std::string_view whole);

  bool has_parts() const { return spelling_ != Spelling::kPlain; }
  std::string in_folder(std::string name) const;
  /// The name in a text-only model; nothing for a tensor of another part.
  std::optional<std::string> of_text(std::string_view name) const;

 private:
  enum class Spelling { kPlain, kOutside, kInside };
  Spelling spelling_ = Spelling::kPlain;
  std::string whole_;
};

}  // namespace sherd::huggingface
