#include "engine/inference/export.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors.h"
#include "checkpoint/interchange/safetensors_folder.h"
#include "checkpoint/reader.h"
#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/config_edits.h"
#include "engine/huggingface/config_writer.h"
#include "engine/huggingface/model_files.h"
#include "engine/huggingface/special_tokens.h"
#include "engine/huggingface/text_part.h"
#include "engine/inference/adapter_export.h"
#include "engine/inference/elements.h"
#include "engine/inference/end_of_text.h"
#include "engine/inference/trained_model.h"
#include "engine/launch/stop_signals.h"
#include "engine/launch/system_info.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/written_family.h"
#include "engine/saving/initial_weights.h"
#include "engine/train/from_recipe.h"
#include "engine/train/model_shape.h"

namespace sherd::engine {
namespace {

using huggingface::kConfigName;
using huggingface::ModelConfig;
using Files = std::map<std::string, std::string>;

constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostRanks = 1024;
constexpr const char* kGenerationName = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokensMap = "special_tokens_map.json";

// Threads that copy and round: more than a few only wait for the disk.
int num_ranks(std::optional<std::int64_t> asked) {
  constexpr int kMostUnasked = 8;
  if (!asked) return std::min(num_usable_cores(), kMostUnasked);
  if (*asked < 1 || *asked > kMostRanks) {
    throw UsageError("--ranks is {}; expected a whole number from 1 to {}.", *asked, kMostRanks);
  }
  return static_cast<int>(*asked);
}

void add_files(Files& files, const std::string& folder, bool of_tokenizer) {
  auto& disk = checkpoint::posix_disk();
  for (const std::string& name : huggingface::model_files(disk, folder)) {
    if (name == kConfigName || huggingface::is_tokenizer_file(name) != of_tokenizer) continue;
    files.emplace(name, checkpoint::read_followed(disk, folder + "/" + name, kMaxFileBytes));
  }
}

/// config.json of an export and how it came about.
struct ExportedConfig {
  std::string text;
  std::string kept;  ///< the run's; empty: there is none
  DType dtype = DType::kF32;
  bool adds_biases = false;
};

/// The type of a folder's first tensor, if the folder is still there.
std::optional<DType> stored_dtype(const std::string& folder) {
  auto& disk = checkpoint::posix_disk();
  if (folder.empty() || !checkpoint::is_model_folder(disk, folder)) return std::nullopt;
  try {
    const checkpoint::SafetensorsFolder tensors(disk, folder);
    if (tensors.places().empty()) return std::nullopt;
    return tensors.tensor(tensors.places().begin()->second).dtype();
  } catch (const DataError&) {  // it was replaced, or is damaged; nothing else of it is read
    return std::nullopt;
  }
}

/// The one that the run has kept, with what the run has changed.
ExportedConfig kept_config(const ExportRequest& request, const TrainedModel& trained,
                           const std::string& path) {
  const Recipe::Model& model = trained.recipe.model;
  const std::string whole =
      checkpoint::read_followed(checkpoint::posix_disk(), path, kMaxFileBytes);
  std::string text = huggingface::text_part_of(whole, path);
  if (trained.options.adds_tokens) {
    text = huggingface::with_vocab_size(text, path, model.vocab_size);
  }
  const std::string kept = text;
  text = huggingface::for_exported_weights(text, path);
  text = huggingface::with_positions(text, path, model.max_seq_length);
  const ModelConfig from = huggingface::parse_config(text, path);
  const std::string difference = first_difference(from, trained.recipe);
  if (!difference.empty()) throw UsageError("{}: {}", path, difference);
  // Folders with weights in 8 or 4 bits have their other weights in bf16, also where they don't
  // say so.
  const bool has_codes = static_cast<bool>(huggingface::parse_config(whole, path).codes);
  const DType usual = has_codes ? DType::kBF16 : DType::kF32;
  std::optional<DType> own = from.dtype;
  if (!own && !has_codes && !request.dtype) own = stored_dtype(model.from);
  const DType dtype = request.dtype.value_or(own.value_or(usual));
  return {huggingface::updated_config(text, path, dtype), kept, dtype};
}

/// Of the family that means the same.
ExportedConfig made_config(const ExportRequest& request, const TrainedModel& trained) {
  const DType dtype = request.dtype.value_or(dtype_of(trained.recipe.mixed_precision.param_dtype));
  WrittenFamily written = written_family(trained.recipe, dtype);
  if (!written.exists()) throw UsageError("{}: {}", request.checkpoint, written.reason());
  return {std::move(written.config), "", dtype, written.adds_biases};
}

// Of the tokenizer that the run reads with.
void add_tokenizer(Files& files, const TrainedModel& trained, const std::string& kept) {
  auto& disk = checkpoint::posix_disk();
  const std::string& tokenizer = trained.recipe.data.tokenizer;
  const bool is_kept = huggingface::keeps_tokenizer(disk, kept, tokenizer);
  if (!is_kept && !tokenizer.empty() && checkpoint::exists(disk, tokenizer)) {
    add_files(files, tokenizer, true);
  } else if (checkpoint::exists(disk, kept)) {
    add_files(files, kept, true);
  }
  huggingface::add_special_tokens(trained.recipe.model.add_special_tokens, files);
  if (const auto config = files.find(kTokenizerConfig); config != files.end()) {
    config->second = huggingface::without_code(config->second);
  }
}

// tokenizer_config.json has keys of such names, too, so its template alone counts.
bool template_mentions(const Files& files, std::string_view name) {
  return std::ranges::any_of(files, [&](const auto& file) {
    if (file.first.starts_with("chat_template")) return file.second.find(name) != std::string::npos;
    if (file.first != kTokenizerConfig) return false;
    const auto config = nlohmann::json::parse(file.second, nullptr, false);
    if (!config.is_object() || !config.contains("chat_template")) return false;
    return config.at("chat_template")
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
               .find(name) != std::string::npos;
  });
}

// Where texts end, for whoever serves the model.
void add_ends(Files& files, const TrainedModel& trained, std::string& config, bool is_made,
              const std::string& path) {
  const EndOfText ends = ends_of(trained);
  huggingface::EndTokens tokens{ends.all(), {}};
  if (ends.beginning) tokens.beginning.push_back(*ends.beginning);
  if (is_made || ends.answers_end_elsewhere()) {
    if (!is_made) tokens.beginning.clear();
    config = huggingface::with_end_tokens(config, path, tokens);
  }
  files[kGenerationName] = huggingface::generation_config(files[kGenerationName], config, tokens);
  if (ends.answers_end_elsewhere() && !template_mentions(files, "eos_token")) {
    files[kTokenizerConfig] =
        huggingface::with_eos_token(files[kTokenizerConfig], ends.answer_token);
    // Where both are there, it decides.
    if (const auto map = files.find(kSpecialTokensMap);
        map != files.end() && map->second.find("\"eos_token\"") != std::string::npos) {
      map->second = huggingface::with_eos_token(map->second, ends.answer_token);
    }
  }
}

/// A map from the checkpoint's tensors to those of a family that has biases besides, which are
/// zero.
huggingface::WeightMap map_with_biases(const ModelConfig& config,
                                       const huggingface::ModelWeights& own,
                                       std::int64_t mtp_layers) {
  TrainingOptions options = training_options(recipe_of(config));
  options.model.mtp_layers = mtp_layers;
  huggingface::ModelWeights whole = model_weights(options);
  whole.stacks_experts = own.stacks_experts;
  return huggingface::map_of_part(huggingface::weight_map(*config.family, whole, true),
                                  own.parameters);
}

// Where the files are that a model's folder has besides weights.
std::string folder_of_files(const TrainedModel& trained) {
  if (trained.checkpoint) return kept_beside(*trained.checkpoint);
  return trained.base.empty() ? trained.path : trained.base;
}

class Export {
 public:
  Export(const ExportRequest& request, const TrainedModel& trained)
      : request_(request),
        trained_(trained),
        kept_(folder_of_files(trained)),
        has_kept_(checkpoint::exists(checkpoint::posix_disk(), kept_ + "/" + kConfigName)) {}

  huggingface::FolderToWrite folder() {
    config_ = has_kept_ ? kept_config(request_, trained_, kept_ + "/" + kConfigName)
                        : made_config(request_, trained_);
    folder_.to = request_.to;
    folder_.from = request_.checkpoint;
    folder_.dtype = config_.dtype;
    folder_.shard_bytes = request_.shard_bytes;
    folder_.model = model_weights(trained_.options);
    folder_.num_ranks = num_ranks(request_.ranks);
    add_other_files();
    add_weights();
    return std::move(folder_);
  }

 private:
  bool has_adapter() const { return trained_.options.model.adapter.active(); }

  // config.json last: what it says of ends follows from the others.
  void add_other_files() {
    if (has_kept_) add_files(folder_.files, kept_, false);
    add_tokenizer(folder_.files, trained_, kept_);
    const std::string path = request_.to + "/" + kConfigName;
    add_ends(folder_.files, trained_, config_.text, !has_kept_, path);
    const auto tokenizer = folder_.files.find(kTokenizerConfig);
    if (tokenizer != folder_.files.end() && has_kept_) {
      tokenizer->second = huggingface::tokenizer_with_positions(
          tokenizer->second, config_.kept, trained_.recipe.model.max_seq_length);
    }
    folder_.files[kConfigName] = config_.text;
  }

  void add_weights() {
    const ModelConfig written =
        huggingface::parse_config(config_.text, request_.to + "/" + kConfigName);
    const std::string difference = first_difference(written, trained_.recipe, config_.adds_biases);
    if (!difference.empty()) throw DataError("{}: {}", written.path, difference);
    folder_.family = written.family;
    const std::int64_t mtp_layers = add_predictions();
    if (request_.stack_experts) stack_experts();
    if (config_.adds_biases) folder_.map = map_with_biases(written, folder_.model, mtp_layers);
    if (!has_adapter() && !trained_.overlay) return;
    if (has_adapter() && !request_.merge) return add_adapter();
    if (!folder_.map) folder_.map = huggingface::weight_map(*folder_.family, folder_.model, true);
    if (has_adapter()) {
      folder_.make_reader = merged_elements(trained_, folder_.map->ours, folder_.dtype);
    } else {
      trained_.overlay->rounds_to_odd = folder_.dtype != DType::kF32;
      folder_.make_reader = elements_of(trained_, folder_.map->ours, folder_.num_ranks);
    }
  }

  // The number of layers of multi-token prediction that are exported. Families without names for
  // them are exported without them.
  std::int64_t add_predictions() {
    const std::int64_t layers = trained_.recipe.mtp.num_layers;
    if (layers == 0 ||
        huggingface::modules_of(*folder_.family, "block.{}.mtp.projection").empty()) {
      return 0;
    }
    TrainingOptions options = trained_.options;
    options.model.mtp_layers = layers;
    folder_.model = model_weights(options);
    folder_.files[kConfigName] =
        huggingface::with_prediction_layers(config_.text, request_.to + "/" + kConfigName, layers);
    return layers;
  }

  void stack_experts() {
    if (!huggingface::has_stacked_experts(*folder_.family) ||
        trained_.recipe.moe.num_experts == 0) {
      throw UsageError("{}: a model of type {} has no stacked names of experts",
                       request_.checkpoint, folder_.family->model_type);
    }
    if (has_adapter() && !request_.merge) {
      throw UsageError("{}: holds an adapter, whose files have no stacked names; add --merge",
                       request_.checkpoint);
    }
    folder_.model.stacks_experts = true;
  }

  void add_adapter() {
    if (config_.adds_biases && !trained_.recipe.adapter.modules_to_save.empty()) {
      throw UsageError(
          "{}: the model's family has biases that this model lacks, so PEFT can't store its "
          "modules that are trained whole; export with --merge",
          request_.checkpoint);
    }
    folder_ =
        adapter_folder(trained_, folder_, request_.dtype.value_or(DType::kF32), base_has_parts());
  }

  // AutoModelForCausalLM opens all parts of a base, but of Llama 4, whose class for text has plain
  // names. Where the base is gone, the kept files are those of the folder that it began with.
  bool base_has_parts() const {
    auto& disk = checkpoint::posix_disk();
    const Recipe& recipe = trained_.recipe;
    const std::string& base = recipe.checkpoint.init_from;
    const bool is_folder = checkpoint::is_model_folder(disk, base);
    if (!is_folder && (base != recipe.model.from || !has_kept_)) return false;
    const std::string whole = huggingface::read_config(disk, is_folder ? base : kept_).whole;
    return !whole.empty() && whole != "llama4";
  }

  const ExportRequest& request_;
  const TrainedModel& trained_;
  std::string kept_;  ///< the folder whose config.json the model's is, if there is one
  bool has_kept_;
  ExportedConfig config_;
  huggingface::FolderToWrite folder_;
};

}  // namespace

huggingface::FolderToWrite exported_folder(const ExportRequest& request,
                                           const TrainedModel& trained) {
  return Export(request, trained).folder();
}

ExportSummary write_exported(huggingface::FolderToWrite folder,
                             const checkpoint::Checkpoint* checkpoint, const char* command) {
  if (command) {
    folder.check = [command] {
      if (const StopRequest asked = stop_request(); asked != StopRequest::kNone) {
        throw_stopped(asked, fmt::format("during the {}; its files are removed", command));
      }
    };
    install_stop_handlers();
  }
  return {huggingface::export_folder(checkpoint::posix_disk(), checkpoint, folder), folder.dtype};
}

ExportSummary export_checkpoint(const ExportRequest& request) {
  auto& disk = checkpoint::posix_disk();
  if (huggingface::is_adapter_folder(disk, request.checkpoint)) {
    if (!request.merge) {
      throw UsageError("{}: is an adapter's folder already; --merge writes the whole model with it",
                       request.checkpoint);
    }
  } else if (checkpoint::is_model_folder(disk, request.checkpoint)) {
    throw UsageError("{}: is a model's folder already; expected a checkpoint", request.checkpoint);
  }
  const TrainedModel trained =
      trained_model({request.checkpoint, request.sets, 1, {}, request.average});
  if (request.merge && !trained.options.model.adapter.active() && !trained.overlay) {
    throw UsageError("{}: holds a whole model, so there is nothing to merge", request.checkpoint);
  }
  return write_exported(exported_folder(request, trained), trained.checkpoint.get(),
                        request.handles_signals ? "export" : nullptr);
}

}  // namespace sherd::engine
