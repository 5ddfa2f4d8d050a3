/// A checkpoint's weights as a Hugging Face folder: safetensors, config.json and what else a folder of
/// that kind has.
///
/// Ranks, threads of this process, write it together: each a row of stretches of the files' bytes, in place, at
/// the same time as the others (engine/huggingface/stretch_writer.h), each element read from where the checkpoint
/// has it. No tensor is ever held whole, and the folder is the same on any number of ranks.
///
///   FOLDER/model*.safetensors    one type for all tensors; f32 is rounded to nearest, ties to even
///          sherd-export.json     which checkpoint this is, and checksums (XXH3-64) of every stretch of
///                                every tensor and of every other file: the format itself has none
///
/// An adapter is written the same way, from other maps and elements; and every file of weights can be
/// read again and compared with what was meant.
///
/// Memory   for each rank the checkpoint's blocks (4 MiB of each shard, up to 64, divided by the ranks, and 16
///          at least) and two chunks of 1 MiB.
/// Atomic   written beside its place under another name, made durable, renamed: the folder is whole or
///          isn't there. What is there already is never replaced.
/// Errors   UsageError if `to` exists; DataError where bytes are damaged, the disk refuses, or a weight
///          is beyond what f16 holds: that of the lowest rank that has one, while the others stop. Nothing is
///          left behind.
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
  std::string from;           ///< what it is made of, where that is no checkpoint
  DType dtype = DType::kF32;  ///< f32, bf16 or f16
  std::int64_t shard_bytes = kDefaultShardBytes;
  const Family* family = nullptr;
  ModelWeights model;
  std::map<std::string, std::string> files;  ///< the others: name and content

  std::string weights_name = "model";  ///< of the file: "adapter_model"
  std::optional<WeightMap> map;        ///< instead of the model's, made of `family` and `model`
  /// For each rank, elements of the map's `ours`; empty: the checkpoint's.
  std::function<ReadElements()> make_reader;
  bool read_back = false;  ///< each file, once it is written
  int num_ranks = 1;
  std::function<void()> check;  ///< called by rank 0 every MiB: what it throws ends the export
};

struct ExportResult {
  std::int64_t num_tensors = 0;
  std::int64_t num_files = 0;  ///< of weights
  std::int64_t bytes = 0;      ///< of them
};

/// `checkpoint`: null where folder.make_reader has another source.
ExportResult export_folder(checkpoint::Disk& disk, const checkpoint::Checkpoint* checkpoint,
                           const FolderToWrite& folder);

}  // namespace sherd::huggingface
