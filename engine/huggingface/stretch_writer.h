/// Cuts the tensors of a folder to be written into stretches, and distributes them over ranks.
///
/// A stretch is a contiguous part of one tensor in one file. Exactly one rank writes its bytes and
/// checksum. Each rank has a sequence of consecutive stretches; the ranks' bytes are equal to
/// within one stretch. The cuts depend on the model alone, so the folder's bytes and checksums are
/// the same on any number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/interchange/safetensors_layout.h"
#include "checkpoint/store/disk.h"
#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

struct Stretch {
  int file = 0;                       ///< index into SafetensorsPlan::files
  int tensor = 0;                     ///< index into WeightMap::theirs
  std::int64_t first = 0, count = 0;  ///< elements of the tensor
  std::int64_t offset = 0;            ///< of its bytes in the file
  std::int64_t bytes_before = 0;      ///< bytes of all earlier stretches
};

/// Bytes of a stretch, except a tensor's last one: a 256th of all bytes, a multiple of 4 KiB from 4
/// KiB to 64 MiB.
std::int64_t stretch_bytes(std::int64_t bytes_of_all);

/// All stretches, in the order of files and of bytes within files.
std::vector<Stretch> stretches_of(const checkpoint::SafetensorsPlan& plan,
                                  const std::vector<NamedShape>& theirs, DType dtype);

/// The rank that writes a stretch. `bytes`: of all stretches.
int rank_of(const Stretch& stretch, std::int64_t bytes, int num_ranks);

/// Writes stretches of Hugging Face tensors from our elements. Memory: two chunks of 1 MiB.
class StretchWriter {
 public:
  StretchWriter(const WeightMap& map, DType dtype, ReadElements read);

  /// Calls `before_chunk` before each part of the work. Returns the checksum (XXH3-64) of the
  /// stretch.
  /// Errors   DataError if a weight exceeds f16's range, or writing fails.
  std::uint64_t write(const Stretch& stretch, const checkpoint::File& file,
                      const std::function<void()>& before_chunk);

 private:
  void round(const NamedShape& theirs, std::int64_t first, std::int64_t count);

  const WeightMap& map_;
  DType dtype_;
  ReadElements read_;
  std::vector<std::vector<Source>> links_;  // by Hugging Face tensor
  std::vector<float> chunk_, run_;
};

}  // namespace sherd::huggingface
