/// Exports a checkpoint as a Hugging Face folder (`sherd export --to-hf`). An adapter's checkpoint
/// becomes PEFT's files, or with `merge` the merged model (engine/inference/adapter_export.h).
///
/// An adapter's folder is exported as the merged model, too.
///
/// config.json is the copy that the run kept from its source folder, with the run's changes: rows
/// of the vocabulary, a longer context, the type. For a model that a recipe describes, it is
/// generated (engine/recipe/written_family.h). Either way it is read back before anything is
/// written, and must describe exactly the model in the checkpoint. The tokenizer's files, including
/// the chat template, are those that the run reads with. generation_config.json, and config.json if
/// the run generates one, name every token at which `sherd chat` stops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "engine/huggingface/export.h"

namespace sherd::engine {

struct ExportRequest {
  std::string checkpoint;
  std::string to;
  std::optional<DType> dtype;  ///< none: the type in config.json, f32 if it names none
  std::int64_t shard_bytes = huggingface::kDefaultShardBytes;
  bool average = false;        ///< the average of the weights
  bool merge = false;          ///< export the base model with the adapter merged into it
  bool stack_experts = false;  ///< names that transformers 5 has in memory (Module::stacked)
  std::optional<std::int64_t> ranks = {};  ///< writers; none: the machine's cores, up to 8
  bool handles_signals = true;             ///< Ctrl-C ends the export; false for a library
  std::vector<std::string> sets = {};      ///< "key=value": where an adapter's base is now
};

struct ExportSummary {
  huggingface::ExportResult written;
  DType dtype = DType::kF32;
};

/// Errors   UsageError for a model that fits no Hugging Face family, or a folder that exists;
///          DataError; Interrupted by Ctrl-C, which leaves no file.
ExportSummary export_checkpoint(const ExportRequest& request);

struct TrainedModel;
/// The folder that the export of a model writes. `trained`, which outlives it, is of
/// request.checkpoint, which may be a Hugging Face folder too: the files are then that folder's.
huggingface::FolderToWrite exported_folder(const ExportRequest& request,
                                           const TrainedModel& trained);
/// Writes it, and removes it if Ctrl-C interrupts `command` ("export"; null: signals are left
/// alone). `checkpoint`: as in huggingface::export_folder.
ExportSummary write_exported(huggingface::FolderToWrite folder,
                             const checkpoint::Checkpoint* checkpoint, const char* command);

}  // namespace sherd::engine
