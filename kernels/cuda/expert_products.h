/// Matmuls of an expert's rows, of which there are as many as tokens chose it.
///
/// Bits      cuBLASLt's algorithm follows from the matrix's sizes, the types, and whether operands are
///           aligned: it is the heuristic's first answer for `kExpertPiece` rows that multiplies any
///           number of rows. No sum is split over its depth. So a row's results don't depend on how
///           many rows there are, and a weight gradient of equal rows is always the same.
/// Table     measured algorithms (kernels/device_common/matmul_table.h) aren't used here: a row of
///           that table is for one number of rows.
#pragma once

#include "core/cuda_device.h"
#include "kernels/cuda/matmul_tuning.h"

namespace sherd::kernels::cuda {

/// `key` is one of kernels/device_common/matmul_key.h for kExpertPiece rows: columns of D, or, in a
/// weight gradient, the depth. Computes it for `rows` rows.
/// Errors   UsageError: cuBLASLt can't multiply this.
void multiply_expert_rows(CudaStream& stream, const device_common::MatmulKey& key,
                          std::int64_t rows, const MatmulOperands& operands, void* workspace);

}  // namespace sherd::kernels::cuda
