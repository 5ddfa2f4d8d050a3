/// Everything that determines which algorithm multiplies two matrices on a GPU: the product, its
/// types, its epilogue, how the operands are aligned, and the bytes of workspace. Timing, the ZeRO
/// stage, and the position in memory beyond the class of alignment have no influence. So equal keys
/// give bit-identical results.
///
/// Column-major, as cuBLAS sees it: D [m, n] = op(A) op(B) (+ C), sums over k.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "core/cuda_device.h"
#include "kernels/linear.h"

namespace sherd::kernels::device_common {

/// Operation on a sum before it is rounded. The slope of GELU is applied in the gradient's matmul.
enum class MatmulEpilogue : std::uint8_t { kNone, kBias, kGelu, kGeluBias, kGeluSlope };

inline bool has_bias(MatmulEpilogue epilogue) {
  return epilogue == MatmulEpilogue::kBias || epilogue == MatmulEpilogue::kGeluBias;
}
inline bool has_gelu(MatmulEpilogue epilogue) {
  return epilogue >= MatmulEpilogue::kGelu;
}

struct MatmulKey {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::kF32, out = DType::kF32;
  MatmulEpilogue epilogue = MatmulEpilogue::kNone;
  bool add_to_output = false;
  bool allow_tf32 = false, deterministic = true;
  int alignment = 0;  ///< bytes: 16 if every operand is so aligned, else an element's
  std::int64_t workspace_bytes = 0;

  auto operator<=>(const MatmulKey&) const = default;

  /// Leading dimensions of A and B in memory.
  std::int64_t lda() const { return transpose_a ? k : m; }
  std::int64_t ldb() const { return transpose_b ? n : k; }
};

/// Maximum workspace offered to cuBLASLt: more changes nothing on Hopper (it is cuBLAS's default
/// there).
inline constexpr std::int64_t kMatmulWorkspaceBytes = 32 << 20;

/// The f32 sums over blocks of rows that a bias gradient is computed from.
inline constexpr std::int64_t kBiasRows = 64;  ///< per block, as on the CPU: kernels/cpu/linear.cpp
inline std::int64_t bias_sums_bytes(const LinearShape& shape) {
  return (shape.tokens + kBiasRows - 1) / kBiasRows * shape.outputs * 4;
}
/// The matmul and the bias sums follow one another on their stream and share the memory.
inline std::int64_t matmul_workspace_bytes(const LinearShape& shape) {
  return std::max(kMatmulWorkspaceBytes, bias_sums_bytes(shape));
}

template <class... Pointers>
int alignment_class(DType dtype, const Pointers*... pointers) {
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
  return aligned ? 16 : static_cast<int>(size_of(dtype));
}

/// Whether cuBLASLt fuses GELU and its input (cublasLt.h: the leading dimension of the auxiliary
/// matrix is a multiple of 8), for an output with rows of `width` elements.
inline bool fuses_gelu(std::int64_t width, DType dtype, int alignment) {
  return size_of(dtype) == 2 && width % 8 == 0 && alignment == 16;
}

// A row-major matrix [r, c] is the column-major matrix [c, r]; so each product below is the
// transpose of the one in kernels/linear.h.

/// y^T [O, T] = w [O, I] x^T
inline MatmulKey forward_matmul(const LinearShape& shape) {
  return {.m = shape.outputs, .n = shape.tokens, .k = shape.inputs, .transpose_a = true};
}
/// dx^T [I, T] = w^T [I, O] dy^T
inline MatmulKey backward_input_matmul(const LinearShape& shape) {
  return {.m = shape.inputs, .n = shape.tokens, .k = shape.outputs};
}
/// dw^T [I, O] = x^T [I, T] dy
inline MatmulKey backward_weight_matmul(const LinearShape& shape) {
  return {.m = shape.inputs, .n = shape.outputs, .k = shape.tokens, .transpose_b = true};
}

namespace detail {
inline MatmulKey with_operands(MatmulKey key, DType in, DType out, const Tensor& workspace,
                               const auto*... operands) {
  key.in = in;
  key.out = out;
  key.alignment = alignment_class(size_of(in) < size_of(out) ? in : out, operands...);
  key.workspace_bytes = std::min(workspace.bytes(), kMatmulWorkspaceBytes);
  return key;
}
}  // namespace detail

/// The key without the stream's options: `allow_tf32`, which applies only to f32, and
/// `deterministic`.
inline MatmulKey matmul_key(const LinearForward& args) {
  MatmulKey key = forward_matmul(args.shape);
  key.epilogue = args.gelu_input ? args.bias ? MatmulEpilogue::kGeluBias : MatmulEpilogue::kGelu
                 : args.bias     ? MatmulEpilogue::kBias
                                 : MatmulEpilogue::kNone;
  key.add_to_output = static_cast<bool>(args.residual);
  return detail::with_operands(key, args.x.dtype, args.y.dtype, args.workspace, args.w.data,
                               args.x.data, args.y.data, args.bias.data, args.gelu_input.data,
                               args.residual.data);
}
inline MatmulKey matmul_key(const LinearBackwardInput& args) {
  MatmulKey key = backward_input_matmul(args.shape);
  key.add_to_output = args.add_to_output;
  if (args.gelu_input) key.epilogue = MatmulEpilogue::kGeluSlope;
  return detail::with_operands(key, args.dy.dtype, args.dx.dtype, args.workspace, args.w.data,
                               args.dy.data, args.dx.data, args.gelu_input.data);
}
inline MatmulKey matmul_key(const LinearBackwardWeight& args) {
  MatmulKey key = backward_weight_matmul(args.shape);
  key.add_to_output = args.add_to_output;
  return detail::with_operands(key, args.dy.dtype, args.dw.dtype, args.workspace, args.x.data,
                               args.dy.data, args.dw.data);
}
/// The same with the stream's options.
inline MatmulKey on_stream(MatmulKey key, const CudaStreamOptions& stream) {
  key.allow_tf32 = key.in == DType::kF32 && stream.allow_tf32;
  key.deterministic = stream.deterministic;
  return key;
}

}  // namespace sherd::kernels::device_common
