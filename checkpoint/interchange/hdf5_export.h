/// Exports a checkpoint to one plain HDF5 file with whole tensors, for programs that want neither
/// shards nor virtual datasets. This is what `sherd export` does.
///
///   /tensors/<name>/<kind>   as in index.h5, but the data is in this file
///
/// Types    all f32 or all bf16; u8 (codes of 8-bit moments) stays u8. f32 to bf16 rounds to nearest, ties to even (in our code, since
///          libhdf5 rounds differently); bf16 to f32 is exact.
/// Memory   in_order_buffer_bytes() and a chunk; every byte read is checked.
/// Atomic   written in the same folder under another name, made durable, then renamed: `to` is
///          complete or doesn't exist. An existing file is never replaced.
/// Errors   UsageError if `to` exists, or the checkpoint has nothing of the requested kinds.
///          DataError if bytes are damaged or the disk refuses. No file is left.
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
