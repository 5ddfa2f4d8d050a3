/// A matmul of one row: what a step of decoding does with every weight.
///
/// Each weight is read once and used once, so the bound is memory's rate, not that of multiply-adds, and
/// packing (pack.h) would cost more than it gains: blocks of eight by eight weights are transposed in
/// registers instead. The chains are those of matmul.h, so the bits are too.
#pragma once

#include "kernels/cpu/matmul/matmul.h"

namespace sherd::kernels::cpu {

/// Whether `matmul` is of this kind: one row, b's columns one after another in memory, and no AMX,
/// whose sums are others. (A column of a larger matrix, as a row, isn't.)
bool is_one_row(const Matmul& matmul);

void multiply_one_row(ThreadTeam& team, const Matmul& matmul);

}  // namespace sherd::kernels::cpu
