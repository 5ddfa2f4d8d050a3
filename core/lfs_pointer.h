/// What a clone without Git LFS has in place of a large file: three short lines that name it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sherd {

/// Pointers are shorter.
inline constexpr std::int64_t kMostLfsPointerBytes = 1024;

/// `beginning` is the start of a file of `bytes` bytes.
/// Errors   DataError if it is such a pointer.
inline void refuse_lfs_pointer(const std::string& path, std::string_view beginning,
                               std::int64_t bytes) {
  if (bytes >= kMostLfsPointerBytes ||
      !beginning.starts_with("version https://git-lfs.github.com/spec/")) {
    return;
  }
  throw DataError(
      "{}: is a pointer of Git LFS in place of the file; run git lfs pull, or download "
      "the file.",
      path);
}

}  // namespace sherd
