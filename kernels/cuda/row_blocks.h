/// The second half of a sum over rows: the sums of blocks of rows, added up column by column.
///
///   out[d] = (add ? out[d] : 0) + sum over blocks b of partial[b * stride + d]
///
/// The sum is f32, rounded once; its order depends only on the number of blocks.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels::cuda {

struct BlockSums {
  const float* partial;
  std::int64_t blocks, stride;
};
/// `what` names it in errors.
void add_row_blocks(Stream& stream, const char* what, const BlockSums& sums, bool add,
                    const Tensor& out);

}  // namespace sherd::kernels::cuda
