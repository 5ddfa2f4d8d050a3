/// How a GPU cuts the rows of a norm into blocks for the sums over rows: depending only on T and D,
/// so that the order of the sums is the same on every GPU. There are enough blocks to fill a large
/// GPU, and for usual widths at most about two million partial sums (8 MiB).
#pragma once

#include <cstdint>

#include "core/host_device.h"

// T tokens (rows), D width.
namespace sherd::kernels::device_common {

class RowBlocks {
 public:
  SHERD_HOST_DEVICE RowBlocks(std::int64_t tokens, std::int64_t width) : tokens_(tokens) {
    const std::int64_t most = most_blocks(width), rows = (tokens + most - 1) / most;
    rows_ = rows < kFewestRows ? kFewestRows : rows;
  }
  SHERD_HOST_DEVICE std::int64_t count() const { return (tokens_ + rows_ - 1) / rows_; }
  SHERD_HOST_DEVICE std::int64_t begin(std::int64_t block) const { return block * rows_; }
  SHERD_HOST_DEVICE std::int64_t end(std::int64_t block) const {
    const std::int64_t end = (block + 1) * rows_;
    return end < tokens_ ? end : tokens_;
  }
  /// Maximum over all numbers of tokens up to this one: fewer tokens may make more blocks.
  static std::int64_t most_count(std::int64_t tokens, std::int64_t width) {
    const std::int64_t most = most_blocks(width), wanted = (tokens + kFewestRows - 1) / kFewestRows;
    return wanted < most ? wanted : most;
  }

 private:
  static constexpr std::int64_t kFewestRows = 4;
  SHERD_HOST_DEVICE static std::int64_t most_blocks(std::int64_t width) {
    const std::int64_t blocks = (std::int64_t{1} << 20) / width;
    return blocks < 128 ? 128 : blocks > 1024 ? 1024 : blocks;
  }

  std::int64_t tokens_, rows_;
};

/// Bytes for each block's sums of dweight and dbias: f32 [blocks, 2, D].
inline std::int64_t norm_sums_bytes(std::int64_t tokens, std::int64_t width) {
  return RowBlocks::most_count(tokens, width) * 2 * width *
         static_cast<std::int64_t>(sizeof(float));
}

/// Bytes for each block's sums of weight gradients: f32 [blocks, weights].
inline std::int64_t qk_norm_sums_bytes(std::int64_t tokens, std::int64_t weights) {
  return RowBlocks::most_count(tokens, weights) * weights *
         static_cast<std::int64_t>(sizeof(float));
}

}  // namespace sherd::kernels::device_common
