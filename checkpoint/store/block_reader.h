/// Reads a checkpoint's blocks. It returns only bytes with a correct checksum and finite values.
///
/// A block is the unit of checksums: kBlockBytes of one dataset of one shard, the last one shorter.
/// The reader keeps the most recently used blocks in the memory it is given. So reading tensors in
/// their logical order (and so from shard to shard) reads each block about once. libhdf5 isn't
/// used: places come from the manifest.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/committed.h"
#include "core/tensor.h"

namespace sherd::checkpoint {

/// Elements of a band of a tensor's columns, and the one place where they are stored.
struct StoredRun {
  int tensor = 0;                  ///< index into Manifest::tensors
  std::int64_t first_element = 0;  ///< index in the band
  std::int64_t count = 0;
  int shard = 0;
  int dataset = 0;            ///< index into ShardInfo::datasets
  std::int64_t position = 0;  ///< index in the dataset
  sharding::Band band{};      ///< its columns are set even if the band is the whole tensor
};

/// Number of blocks needed at once to read all tensors in order: one of each shard, up to 64.
std::int64_t in_order_buffer_bytes(const Manifest& manifest);

/// Where all elements of a checkpoint are stored.
///
/// Memory   56 bytes for each piece of the manifest.
class StoredElements {
 public:
  explicit StoredElements(const Manifest& manifest);

  /// Calls `visit` for the parts of elements [first, first + count) of a band of a tensor, in
  /// order. A part is a run of elements that are consecutive in one shard. If the tensor is stored
  /// in other bands, runs are parts of its rows.
  void visit(int tensor, const sharding::Band& band, std::int64_t first, std::int64_t count,
             const std::function<void(const StoredRun&)>& visit) const;
  /// The same for the whole tensor.
  void visit(int tensor, const std::function<void(const StoredRun&)>& visit) const;

  /// All pieces of one tensor, by band and then by first element.
  std::span<const StoredRun> pieces(int tensor) const;

 private:
  void visit_rows(int tensor, const sharding::Band& band, std::int64_t first, std::int64_t count,
                  const std::function<void(const StoredRun&)>& visit) const;
  const StoredRun& run_with(int tensor, std::int64_t column, std::int64_t row) const;

  std::vector<sharding::Band> whole_;  // by tensor: all of its columns
  std::vector<std::int64_t> numel_;
  std::vector<StoredRun> runs_;  // by tensor, band and first element
};

class BlockReader {
 public:
  /// `buffer` holds the blocks: u8, at least kBlockBytes.
  BlockReader(const Checkpoint& checkpoint, Tensor buffer);

  /// The bytes of one block, valid until the next call.
  /// Errors   DataError naming file, bytes and the tensors in them, or the element that is a NaN or
  ///          an infinity.
  std::string_view block(int shard, int dataset, std::int64_t number);

  /// The bytes of a run, in order, in one part per block that it touches.
  void each(const StoredRun& run, const std::function<void(std::string_view bytes)>& use);

  std::int64_t blocks_read() const { return blocks_read_; }

 private:
  struct Slot {
    int shard = -1;
    int dataset = -1;
    std::int64_t number = -1;
    std::int64_t bytes = 0;
    std::int64_t last_used = -1;
  };
  void read(Slot& slot, char* to);
  char* memory_of(std::size_t slot) const {
    return static_cast<char*>(buffer_.data) + static_cast<std::int64_t>(slot) * kBlockBytes;
  }

  const Checkpoint& checkpoint_;
  Tensor buffer_;
  std::vector<Slot> slots_;
  File file_;
  int file_shard_ = -1;
  std::int64_t uses_ = 0;
  std::int64_t blocks_read_ = 0;
};

}  // namespace sherd::checkpoint
