#include "engine/huggingface/text_part.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {
namespace {

using nlohmann::json;

constexpr std::string_view kTextConfig = "text_config";
constexpr std::string_view kOutside = "language_model.";
constexpr std::string_view kInside = "model.language_model.";
constexpr std::string_view kModel = "model.";

// What either of the two may say.
constexpr auto kShared = std::to_array<const char*>(
    {"dtype", "torch_dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id"});

const Whole* whole_of(std::string_view model_type) {
  const auto all = models_of_parts();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const Whole& whole) { return whole.model_type == model_type; });
  return found == all.end() ? nullptr : &*found;
}

bool has_prefix(const checkpoint::SafetensorsFolder& folder, std::string_view prefix) {
  const auto at = folder.places().lower_bound(std::string(prefix));
  return at != folder.places().end() && at->first.starts_with(prefix);
}

}  // namespace

std::optional<json> text_part(const json& config, const std::string& path) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return std::nullopt;
  if (!whole_of(type->get_ref<const std::string&>())) return std::nullopt;
  const auto found = config.find(kTextConfig);
  if (found == config.end() || !found->is_object()) {
    throw DataError("{}: model_type is \"{}\", a model of several parts, but there is no {}", path,
                    type->get_ref<const std::string&>(), kTextConfig);
  }
  json text = *found;
  for (const char* key : kShared) {
    const auto outer = config.find(key);
    if (outer == config.end() || outer->is_null()) continue;
    const auto inner = text.find(key);
    if (inner == text.end() || inner->is_null()) {
      text[key] = *outer;
    } else if (std::string_view(key) == "tie_word_embeddings" && *inner != *outer) {
      throw DataError("{}: tie_word_embeddings is {} and in {} {}; which one applies is unknown",
                      path, outer->dump(), kTextConfig, inner->dump());
    }
  }
  return text;
}

std::string text_part_of(std::string text, const std::string& path) {
  const json config = checkpoint::parse_strict(text, path);
  const std::optional<json> part = config.is_object() ? text_part(config, path) : std::nullopt;
  return part ? part->dump(2) + "\n" : std::move(text);
}

bool is_of_whole(std::string_view key) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {kTextConfig, "model_type", "architectures", "transformers_version", "pad_token_id",
       "initializer_range", "quantization_config"});
  return std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end() &&
         std::find(kShared.begin(), kShared.end(), key) == kShared.end();
}

TensorNames::TensorNames(const checkpoint::SafetensorsFolder& folder, std::string_view whole)
    : whole_(whole) {
  if (whole.empty()) return;
  spelling_ = has_prefix(folder, kInside) ? Spelling::kInside : Spelling::kOutside;
}

std::string TensorNames::in_folder(std::string name) const {
  if (spelling_ == Spelling::kOutside) return std::string(kOutside) + name;
  if (spelling_ == Spelling::kInside && name.starts_with(kModel)) {
    return std::string(kInside) + name.substr(kModel.size());
  }
  return name;
}

std::optional<std::string> TensorNames::of_text(std::string_view name) const {
  if (spelling_ == Spelling::kPlain) return std::string(name);
  const auto parts = whole_of(whole_)->others;
  const std::string_view inner = name.starts_with(kModel) ? name.substr(kModel.size()) : name;
  if (std::any_of(parts.begin(), parts.end(),
                  [&](std::string_view part) { return inner.starts_with(part); })) {
    return std::nullopt;
  }
  if (spelling_ == Spelling::kOutside && name.starts_with(kOutside)) {
    return std::string(name.substr(kOutside.size()));
  }
  if (spelling_ == Spelling::kInside && name.starts_with(kInside)) {
    return std::string(kModel) + std::string(name.substr(kInside.size()));
  }
  return std::string(name);
}

}  // namespace sherd::huggingface
