/// The rule of kernels/cpu/matmul/matmul.h in scalar code, one element at a time: what the
/// instructions compute according to the manuals (Intel SDM vol. 2: VFMADD231PS, VDPBF16PS,
/// TDPBF16PS).
///
///   f32, f16   sum = fma(a[k], b[k], sum), k ascending
///   bf16       for each pair: sum = fma(a[odd], b[odd], sum), then the even one; subnormal operands
///              and results are zeros of their sign
///   bf16, amx  for each 32 of the depth: the even terms and the odd terms, each a chain from zero;
///              sum = sum + (even + odd)
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace sherd::test {

struct MatmulModel {
  std::int64_t rows = 0, columns = 0, depth = 0;
  ConstTensor a, b;  ///< [rows, depth], [depth, columns]
  ConstTensor bias;  ///< [columns], or empty
  bool add = false;
  bool amx = false;
};
void multiply(const MatmulModel& matmul, const Tensor& c);

}  // namespace sherd::test
