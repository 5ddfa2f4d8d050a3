#include "engine/inference/export.h"

#include <algorithm>

#include "checkpoint/interchange/safetensors.h"
#include "engine/huggingface/config_writer.h"
#include "engine/huggingface/model_files.h"
#include "engine/huggingface/special_tokens.h"
#include "engine/huggingface/text_part.h"
#include "engine/inference/adapter_export.h"
#include "engine/inference/trained_model.h"
#include "engine/launch/stop_signals.h"
#include "engine/launch/system_info.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/stored.h"
#include "engine/saving/initial_weights.h"

namespace sherd::engine {
namespace {

using huggingface::Family;
using huggingface::kConfigName;
using huggingface::ModelConfig;

constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostRanks = 1024;

/// The first key in which the model of a config.json differs from the recipe's; "" if none does.
std::string first_difference(const ModelConfig& config, const Recipe& recipe) {
  const RecipeTexts own = compared_values(recipe);
  for (const auto& [key, value] : model_values(config)) {
    const auto found = own.find(key);
    if (found == own.end() || found->second == value) continue;
    return fmt::format("{} is {} there and {} in the checkpoint", key, value, found->second);
  }
  return "";
}

/// config.json for a model that a recipe describes: of the first family that means the same.
std::string made_config(const Recipe& recipe, const std::string& path, DType dtype) {
  RecipeTexts values = compared_values(recipe);
  for (const Family* family : huggingface::all_families()) {
    const std::string text = huggingface::config_of(*family, values, dtype);
    try {
      const std::string label = fmt::format("{} as {}", path, family->model_type);
      if (first_difference(huggingface::parse_config(text, label), recipe).empty()) return text;
    } catch (const Error&) {  // it can't say this model
    }
  }
  throw UsageError(
      "{}: no family of models that Hugging Face's library knows has this model's keys", path);
}

void add_files(std::map<std::string, std::string>& files, const std::string& folder) {
  auto& disk = checkpoint::posix_disk();
  for (const std::string& name : huggingface::model_files(disk, folder)) {
    if (name == kConfigName) continue;
    files.emplace(name, checkpoint::read_followed(disk, folder + "/" + name, kMaxFileBytes));
  }
}

// Threads that copy and round: more than a few only wait for the disk.
int num_ranks(std::optional<std::int64_t> asked) {
  constexpr int kMostUnasked = 8;
  if (!asked) return std::min(num_usable_cores(), kMostUnasked);
  if (*asked < 1 || *asked > kMostRanks) {
    throw UsageError("--ranks is {}; expected a whole number from 1 to {}.", *asked, kMostRanks);
  }
  return static_cast<int>(*asked);
}

}  // namespace

ExportSummary export_checkpoint(const ExportRequest& request) {
  auto& disk = checkpoint::posix_disk();
  if (checkpoint::is_model_folder(disk, request.checkpoint)) {
    throw UsageError("{}: is a model's folder already; expected a checkpoint", request.checkpoint);
  }
  const TrainedModel trained = trained_model({request.checkpoint, {}, 1, {}});
  const bool has_adapter = trained.options.model.adapter.active();
  if (request.merge && !has_adapter) {
    throw UsageError("{}: holds a whole model, so there is nothing to merge", request.checkpoint);
  }
  const std::string kept = kept_beside(*trained.checkpoint);
  const bool has_kept = checkpoint::exists(disk, kept + "/" + kConfigName);
  ExportSummary summary;
  huggingface::FolderToWrite folder;
  folder.to = request.to;
  folder.shard_bytes = request.shard_bytes;
  folder.model = model_weights(trained.options);
  std::string config;
  const std::vector<std::string>& tokens = trained.recipe.model.add_special_tokens;
  if (has_kept) {
    const std::string path = kept + "/" + kConfigName;
    std::string text =
        huggingface::text_part_of(checkpoint::read_followed(disk, path, kMaxFileBytes), path);
    if (!tokens.empty()) {
      text = huggingface::with_vocab_size(text, path, trained.recipe.model.vocab_size);
    }
    const ModelConfig from = huggingface::parse_config(text, path);
    const std::string difference = first_difference(from, trained.recipe);
    if (!difference.empty()) throw UsageError("{}: {}", path, difference);
    folder.dtype = request.dtype.value_or(from.dtype.value_or(DType::kF32));
    config = huggingface::updated_config(text, path, folder.dtype);
    add_files(folder.files, kept);
  } else {
    folder.dtype = request.dtype.value_or(DType::kF32);
    config = made_config(trained.recipe, request.checkpoint, folder.dtype);
    const std::string& tokenizer = trained.recipe.data.tokenizer;
    if (!tokenizer.empty() && checkpoint::exists(disk, tokenizer)) {
      add_files(folder.files, tokenizer);
    }
  }
  huggingface::add_special_tokens(tokens, folder.files);
  const ModelConfig written = huggingface::parse_config(config, request.to + "/" + kConfigName);
  if (const std::string difference = first_difference(written, trained.recipe);
      !difference.empty()) {
    throw DataError("{}: {}", written.path, difference);
  }
  folder.family = written.family;
  folder.files[kConfigName] = config;
  folder.files.emplace("generation_config.json", "{}\n");
  if (has_adapter && request.merge) {
    folder.map = huggingface::weight_map(*folder.family, folder.model, true);
    folder.make_reader = merged_elements(trained, folder.map->ours, folder.dtype);
  } else if (has_adapter) {
    folder = adapter_folder(trained, folder, request.dtype.value_or(DType::kF32));
  }
  folder.num_ranks = num_ranks(request.ranks);
  folder.check = [] {
    if (const StopRequest asked = stop_request(); asked != StopRequest::kNone) {
      throw_stopped(asked, "during the export; nothing of it is left");
    }
  };
  install_stop_handlers();
  summary.dtype = folder.dtype;
  summary.written = huggingface::export_folder(disk, *trained.checkpoint, folder);
  return summary;
}

}  // namespace sherd::engine
