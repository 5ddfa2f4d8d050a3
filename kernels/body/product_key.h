/// What decides which algorithm multiplies two matrices on a GPU, and nothing else: the product,
/// its types, its epilogue, how the operands are aligned, and the bytes of workspace. Not timing,
/// not the ZeRO stage, not where in memory something lies beyond its class of alignment: equal keys
/// give equal bits.
///
/// Column-major, as cuBLAS sees it: D [m, n] = op(A) op(B) (+ C), sums over k.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/linear.h"

namespace sherd::kernels::body {

enum class ProductEpilogue : std::uint8_t { kNone, kBias };

struct ProductKey {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::kF32, out = DType::kF32;
  ProductEpilogue epilogue = ProductEpilogue::kNone;
  bool add_to_output = false;
  bool allow_tf32 = false, deterministic = true;
  int alignment = 0;  ///< bytes: 16 if every operand has it, else that of an element
  std::int64_t workspace_bytes = 0;

  auto operator<=>(const ProductKey&) const = default;

  /// Rows of A and B as they lie in memory.
  std::int64_t lda() const { return transpose_a ? k : m; }
  std::int64_t ldb() const { return transpose_b ? n : k; }
};

/// What cuBLASLt is offered at most: more changes nothing on Hopper (cuBLAS's own default there).
inline constexpr std::int64_t kProductWorkspaceBytes = 32 << 20;

template <class... Pointers>
int alignment_class(DType dtype, const Pointers*... pointers) {
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
  return aligned ? 16 : static_cast<int>(size_of(dtype));
}

// A row-major matrix [r, c] is the column-major matrix [c, r]; so each product below is the
// transpose of the one in kernels/linear.h.

/// y^T [O, T] = w [O, I] x^T
inline ProductKey forward_product(const LinearShape& shape) {
  return {.m = shape.outputs, .n = shape.tokens, .k = shape.inputs, .transpose_a = true};
}
/// dx^T [I, T] = w^T [I, O] dy^T
inline ProductKey backward_input_product(const LinearShape& shape) {
  return {.m = shape.inputs, .n = shape.tokens, .k = shape.outputs};
}
/// dw^T [I, O] = x^T [I, T] dy
inline ProductKey backward_weight_product(const LinearShape& shape) {
  return {.m = shape.inputs, .n = shape.outputs, .k = shape.tokens, .transpose_b = true};
}

}  // namespace sherd::kernels::body
