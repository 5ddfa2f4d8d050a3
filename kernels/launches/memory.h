/// Builds descriptions of launches.
#pragma once

#include "kernels/launches/launches.h"

namespace sherd::kernels::launches {

inline constexpr std::int64_t kFloat = 4, kDouble = 8;

template <class... Tensors>
std::int64_t bytes_of(const Tensors&... tensors) {
  return (tensors.bytes() + ... + 0);
}

inline Launch memory(std::string_view kernel, std::int64_t read, std::int64_t written) {
  return {.kernel = kernel, .read = read, .written = written};
}

// Nothing is launched for empty flat buffers.
inline Launches flat(std::string_view kernel, std::int64_t numel, std::int64_t read,
                     std::int64_t written) {
  return numel == 0 ? Launches{} : Launches{memory(kernel, read, written)};
}

inline Launches operator+(Launches a, const Launches& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// kernels/cuda/row_blocks.h: sums of blocks of rows, `stride` floats apart, to one row of `out`.
inline Launch add_row_blocks(std::string_view kernel, std::int64_t blocks, const Tensor& out,
                             bool add) {
  return memory(kernel, blocks * out.numel * kFloat + (add ? out.bytes() : 0), out.bytes());
}

}  // namespace sherd::kernels::launches
