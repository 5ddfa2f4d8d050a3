/// One plain HDF5 file from a checkpoint, with whole tensors: for programs that want neither shards
/// nor virtual datasets. What `sherd export` does.
///
///   /tensors/<name>/<kind>   as in index.h5, but the data is in this file
///
/// Types    f32 or bf16 for everything. f32 to bf16 rounds to nearest, ties to even (by us:
///          libhdf5 rounds otherwise); bf16 to f32 is exact.
/// Memory   in_order_buffer_bytes() and a chunk; every byte read is checked.
/// Atomic   written next to its place under another name, made durable, then renamed: `to` is whole
///          or isn't there. What is there already is never replaced.
/// Errors   UsageError if `to` exists or the checkpoint has nothing of the kinds asked for;
///          DataError where bytes are damaged or the disk refuses. Nothing is left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "core/dtype.h"

namespace sherd::checkpoint {

struct ExportOptions {
  std::string to;
  DType dtype = DType::kF32;                   ///< f32 or bf16
  std::vector<std::string> kinds = {"param"};  ///< empty: all
};

struct ExportResult {
  std::int64_t num_tensors = 0;
  std::int64_t bytes = 0;  ///< of the file
};

ExportResult export_file(Disk& disk, const Checkpoint& checkpoint, const ExportOptions& options);

}  // namespace sherd::checkpoint
