/// How matmuls (matmul.h) are carried out: the right matrix goes by blocks, which threads pack and
/// multiply in one list of tasks (schedule.h).
#pragma once

#include "kernels/cpu/matmul/matmul.h"

namespace sherd::kernels::cpu {

// 768 by 1536, twice: 9 MiB of the last cache. Less depth means that the output goes through memory
// more often: 384 took 4 % longer.
inline constexpr std::int64_t kMaxDepth = 768;
inline constexpr std::int64_t kMaxColumns = 1536;
/// Below so many multiply-adds a second thread costs more than it brings.
inline constexpr std::int64_t kLeastForThreads = 1 << 19;
/// So few rows that packing the right matrix is most of the work.
inline constexpr std::int64_t kFewRows = 12;

/// Whether a block of the output is summed in f32 aside, from one piece of the depth to the next.
inline bool keeps_sums(DType c_dtype, std::int64_t depth) {
  return c_dtype != DType::kF32 && depth > kMaxDepth;
}

/// Floats of the workspace: a packed block of the right matrix, and those sums.
std::int64_t floats_of_block(std::int64_t columns, std::int64_t depth);
std::int64_t sum_floats(std::int64_t rows, std::int64_t depth, DType c_dtype);

/// At least one matmul, all of the same types. The workspace holds the largest block, twice with
/// `two_blocks`, then the largest sums.
void run_matmuls(ThreadTeam& team, std::span<const Matmul> list, bool two_blocks,
                 const Tensor& workspace);

}  // namespace sherd::kernels::cpu
