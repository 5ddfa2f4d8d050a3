/// Exports a checkpoint's weights as a Hugging Face folder: safetensors, config.json and the other
/// files of such a folder.
///
/// Ranks, which are threads of this process, write in parallel. Each rank writes a sequence of
/// stretches of the files' bytes in place (engine/huggingface/stretch_writer.h), and reads each
/// element from its place in the checkpoint. No tensor is ever held whole, and the folder is the
/// same on any number of ranks.
///
///   FOLDER/model*.safetensors    one type for all tensors; f32 is rounded to nearest, ties to even
///          sherd-export.json     which checkpoint this is, and checksums (XXH3-64) of every
///                                stretch of every tensor and of every other file: the format
///                                itself has none
///
/// An adapter is written the same way, from other maps and elements. Every file of weights can be
/// read back and compared with the intended contents.
///
/// Memory   per rank: blocks of the checkpoint (one of 4 MiB for each shard, up to 64, divided by
///          the number of ranks, but at least 16 blocks) and two chunks of 1 MiB.
/// Atomic   written next to its place under another name, made durable, then renamed: the folder is
///          complete or doesn't exist. Existing files are never replaced.
/// Errors   UsageError if `to` exists; DataError if data are damaged, writing fails, or a weight
///          exceeds f16's range. The error of the lowest failing rank counts; the others stop. No
///          files are left.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/store/committed.h"
#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

inline constexpr std::int64_t kDefaultShardBytes = 5'000'000'000;
inline constexpr const char* kExportName = "sherd-export.json";

struct FolderToWrite {
  std::string to;
  std::string from;           ///< its source, if that isn't a checkpoint
  DType dtype = DType::kF32;  ///< f32, bf16 or f16
  std::int64_t shard_bytes = kDefaultShardBytes;
  const Family* family = nullptr;
  ModelWeights model;
  std::map<std::string, std::string> files;  ///< the other files: name and content

  std::string weights_name = "model";  ///< of the weight files; also "adapter_model"
  std::optional<WeightMap> map;        ///< replaces the map made from `family` and `model`
  /// Makes a reader of elements of the map's `ours` for each rank; empty: read the checkpoint.
  std::function<ReadElements()> make_reader;
  bool read_back = false;  ///< verify each file after it is written
  int num_ranks = 1;
  std::function<void()> check;  ///< called by rank 0 every MiB; throwing ends the export
};

struct ExportResult {
  std::int64_t num_tensors = 0;
  std::int64_t num_files = 0;  ///< weight files
  std::int64_t bytes = 0;      ///< in weight files
};

/// `checkpoint`: null if folder.make_reader reads another source.
ExportResult export_folder(checkpoint::Disk& disk, const checkpoint::Checkpoint* checkpoint,
                           const FolderToWrite& folder);

}  // namespace sherd::huggingface
