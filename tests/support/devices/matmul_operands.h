/// Memory and numbers for a matmul, given only its key (kernels/device_common/matmul_key.h).
#pragma once

#include "kernels/cuda/matmul_tuning.h"
#include "kernels/pointwise.h"

namespace sherd::test {

struct OperandsOfMatmul {
  kernels::cuda::MatmulOperands matmul;
  Tensor workspace;
};

namespace detail {

// Pieces at multiples of 256 bytes. With a smaller alignment class, a piece is offset from the
// multiple by that alignment.
class Pieces {
 public:
  explicit Pieces(char* data) : data_(data) {}

  Tensor next(std::int64_t numel, DType dtype, int alignment = 16) {
    used_ = (used_ + 255) / 256 * 256 + (alignment < 16 ? alignment : 0);
    const Tensor piece{data_ + used_, dtype, numel};
    used_ += piece.bytes();
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  char* data_;
  std::int64_t used_ = 0;
};

struct OperandTensors {
  Tensor a, b, c, d, bias, gelu_input, workspace, wide;
};
inline OperandTensors operand_tensors(const kernels::device_common::MatmulKey& key, char* data,
                                      std::int64_t& bytes) {
  Pieces pieces(data);
  OperandTensors t;
  t.a = pieces.next(key.m * key.k, key.in, key.alignment);
  t.b = pieces.next(key.k * key.n, key.in, key.alignment);
  t.d = pieces.next(key.m * key.n, key.out, key.alignment);
  if (has_bias(key.epilogue)) t.bias = pieces.next(key.m, key.in, key.alignment);
  // As in runs: gradients are added in place, and a branch is added to a residual stream.
  if (key.add_to_output && key.transpose_a) t.c = pieces.next(t.d.numel, key.out, key.alignment);
  if (has_gelu(key.epilogue)) t.gelu_input = pieces.next(key.m * key.n, key.in, key.alignment);
  t.workspace = pieces.next(key.workspace_bytes, DType::kU8);
  t.wide = pieces.next(
      std::max({t.a.numel, t.b.numel, t.c.numel, t.gelu_input.numel, t.bias.numel}), DType::kF32);
  bytes = pieces.used();
  return t;
}

}  // namespace detail

inline std::int64_t operand_bytes(const kernels::device_common::MatmulKey& key) {
  std::int64_t bytes = 0;
  detail::operand_tensors(key, nullptr, bytes);
  return bytes;
}

/// Operands in `memory`, which has `operand_bytes` bytes at a multiple of 256: normal numbers of
/// standard deviation 0.5, and zeros in d.
inline OperandsOfMatmul random_operands(Stream& stream,
                                        const kernels::device_common::MatmulKey& key,
                                        const Tensor& memory) {
  std::int64_t bytes = 0;
  const auto t = detail::operand_tensors(key, static_cast<char*>(memory.data), bytes);
  SHERD_CHECK(bytes <= memory.bytes(), "operands of {} bytes", bytes);
  std::int64_t first = 0;
  for (const Tensor& each : {t.a, t.b, t.bias, t.gelu_input, t.c}) {
    if (!each) continue;
    const Tensor wide = t.wide.part(0, each.numel);
    kernels::fill_normal(stream, wide, {1, 2, 3}, first, 0.0f, 0.5f);
    kernels::cast(stream, wide, each);
    first += each.numel;
  }
  kernels::fill_zero(stream, t.d);
  return {{t.a.data, t.b.data, t.d.data, t.bias.data, t.gelu_input.data, t.c.data}, t.workspace};
}

}  // namespace sherd::test
