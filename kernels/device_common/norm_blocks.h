/// How the rows of a norm are cut into blocks for the sums over rows: by the number of rows alone,
/// as kernels/cpu/norm_backward.cpp cuts them, so that the workspace and the order of the sums are
/// the same on both devices.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace sherd::kernels::device_common {

class RowBlocks {
 public:
  SHERD_HOST_DEVICE explicit RowBlocks(std::int64_t tokens) : tokens_(tokens) {
    const std::int64_t kMost = 64, kFewestRows = 8;
    const std::int64_t rows = (tokens + kMost - 1) / kMost;
    rows_ = rows < kFewestRows ? kFewestRows : rows;
  }
  SHERD_HOST_DEVICE std::int64_t count() const { return (tokens_ + rows_ - 1) / rows_; }
  SHERD_HOST_DEVICE std::int64_t begin(std::int64_t block) const { return block * rows_; }
  SHERD_HOST_DEVICE std::int64_t end(std::int64_t block) const {
    const std::int64_t end = (block + 1) * rows_;
    return end < tokens_ ? end : tokens_;
  }

 private:
  std::int64_t tokens_, rows_;
};

}  // namespace sherd::kernels::device_common
