/// A checkpoint becomes a Hugging Face folder (`sherd export --to-hf`); one of an adapter becomes PEFT's
/// files, or with `merge` the model with the adapter in it (engine/inference/adapter_export.h).
///
/// An adapter's folder becomes the merged model, too.
///
/// config.json is the one that the run has kept of the folder it came from, with what the run has changed: rows of the
/// vocabulary, a longer context, the type. Of a model that a recipe describes it is made
/// (engine/recipe/written_family.h). Either way it is read back before anything is written: it must mean exactly the
/// model that the checkpoint holds. The tokenizer's files, chat template included, are those that the run reads with.
/// generation_config.json, and config.json where the run has a new one, name every token at which `sherd chat` stops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "engine/huggingface/export.h"

namespace sherd::engine {

struct ExportRequest {
  std::string checkpoint;
  std::string to;
  std::optional<DType> dtype;  ///< none: the type in config.json, f32 where it names none
  std::int64_t shard_bytes = huggingface::kDefaultShardBytes;
  bool merge = false;  ///< the model that the adapter is for, with the adapter in it
  std::optional<std::int64_t> ranks = {};  ///< that write; none: the machine's cores, up to 8
};

struct ExportSummary {
  huggingface::ExportResult written;
  DType dtype = DType::kF32;
};

/// Errors   UsageError for a model that no family of Hugging Face's has, or a folder that exists;
///          DataError; Interrupted by Ctrl-C, which leaves nothing behind.
ExportSummary export_checkpoint(const ExportRequest& request);

}  // namespace sherd::engine
