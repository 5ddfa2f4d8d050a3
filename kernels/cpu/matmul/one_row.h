/// A matmul of one row, as a decoding step computes for every weight matrix.
///
/// Each weight is read once and used once, so memory bandwidth is the bound, not the rate of
/// multiply-adds, and packing (pack.h) would cost more than it gains. Instead, blocks of eight by
/// eight weights are transposed in registers. The chains are those of matmul.h, so results are
/// bit-identical.
#pragma once

#include "kernels/cpu/matmul/matmul.h"

namespace sherd::kernels::cpu {

/// Whether `matmul` is of this kind: one row, b's columns one after another in memory, and no AMX,
/// whose sums differ. (A column of a larger matrix, used as a row, isn't.)
bool is_one_row(const Matmul& matmul);

void multiply_one_row(ThreadTeam& team, const Matmul& matmul);

}  // namespace sherd::kernels::cpu
