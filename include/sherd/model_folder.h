/// Model folders in Hugging Face's form: config.json, safetensors files, a tokenizer.
///
///   const sherd::ModelInfo info = sherd::read_model_folder("models/SmolLM2-135M");
///   sherd::export_model("runs/tuned", "models/tuned");
///
/// To train such a model, set model.from or checkpoint.init_from in a recipe. To generate with it,
/// pass the folder to sherd::generate.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

struct ModelInfo {
  std::string model_type{};  ///< config.json's: "llama"
  std::int64_t num_parameters = 0;
  std::string dtype{};  ///< of the weights: "bf16"; "" if config.json doesn't say
  /// The recipe keys of block `model` that config.json sets, with values as in YAML.
  std::vector<std::pair<std::string, std::string>> recipe_values{};
  /// Settings of config.json that training doesn't use.
  std::vector<std::string> unused{};
};

/// Reads config.json alone.
/// Errors   DataError for a folder without one, and for models that aren't supported
SHERD_API ModelInfo read_model_folder(const std::string& folder);

struct ExportOptions {
  std::string dtype{};           ///< "f32", "bf16" or "f16"; "": that of the model's origin
  bool merge = false;            ///< write an adapter's whole model instead of PEFT's files
  bool average = false;          ///< write the average of the weights
  std::int64_t shard_bytes = 0;  ///< most bytes of a weight file; 0: the usual 5 GB
  std::int64_t ranks = 0;        ///< threads that write; 0: the machine's cores, up to 8
};

struct ExportedModel {
  std::int64_t num_tensors = 0, num_files = 0, bytes = 0;
  std::string dtype{};
};

/// Writes `checkpoint` (as in Checkpoint's constructor) as a folder that Hugging Face's library
/// reads. `folder` must not exist; it is complete, or isn't there.
/// Errors   UsageError for a model that no family describes, or a folder that exists; DataError
SHERD_API ExportedModel export_model(const std::string& checkpoint, const std::string& folder,
                                     const ExportOptions& options = {});

}  // namespace sherd::SHERD_ABI
