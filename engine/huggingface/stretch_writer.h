/// The tensors of a folder to be written, cut into stretches that ranks share among themselves.
///
/// A stretch is a piece of one tensor: some elements that stand side by side in one file, whose bytes and
/// checksum one rank writes and nobody else. Each rank has a row of stretches, of as many bytes as the others'
/// to within one; how they are cut follows from the model alone, so the folder's bytes and checksums are the
/// same on any number of ranks.
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
  std::int64_t bytes_before = 0;      ///< of all stretches before it
};

/// Bytes of a stretch, the last one of a tensor excepted: a 256th of all, 4 KiB to 64 MiB, in steps of 4 KiB.
std::int64_t stretch_bytes(std::int64_t bytes_of_all);

/// All stretches, in the order of files and of bytes in them.
std::vector<Stretch> stretches_of(const checkpoint::SafetensorsPlan& plan,
                                  const std::vector<NamedShape>& theirs, DType dtype);

/// The rank that writes a stretch. `bytes`: of all stretches.
int rank_of(const Stretch& stretch, std::int64_t bytes, int num_ranks);

/// Writes stretches of theirs from elements of ours. Memory: two chunks of 1 MiB.
class StretchWriter {
 public:
  StretchWriter(const WeightMap& map, DType dtype, ReadElements read);

  /// Calls `before_chunk` before each part of the work. Returns the checksum (XXH3-64) of the stretch.
  /// Errors   DataError where a weight is beyond what f16 holds, or the disk refuses.
  std::uint64_t write(const Stretch& stretch, const checkpoint::File& file,
                      const std::function<void()>& before_chunk);

 private:
  void round(const NamedShape& theirs, std::int64_t first, std::int64_t count);

  const WeightMap& map_;
  DType dtype_;
  ReadElements read_;
  std::vector<std::vector<Source>> links_;  // by tensor of theirs
  std::vector<float> chunk_, run_;
};

}  // namespace sherd::huggingface
