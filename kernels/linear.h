/// The matmul of every projection, and its two gradients.
///
///   forward           y[t,o]  = sum_i x[t,i] w[o,i] + bias[o] (+ residual[t,o])
///   backward_input    dx[t,i] = sum_o dy[t,o] w[o,i]
///   backward_weight   dw[o,i] = sum_t dy[t,o] x[t,i],    dbias[o] = sum_t dy[t,o]
///
/// Shapes    x [T, I], w [O, I], bias [O], y [T, O]; a gradient has the shape of its tensor. No
///           size may be 0.
/// Types     x, w, bias, y, dy, dx have one type (f32, bf16, f16); dw and dbias may have another.
///           Sums are f32 and rounded once to the output's type.
/// Add       `add_to_output`: the result is added to dx / dw / dbias instead of
///           replacing it (between chunks of one micro-step, never between micro-steps). A 16-bit
///           output is added after the whole sum, an f32 one in pieces of the depth.
///           CUDA: a 16-bit sum is rounded before it is added (cuBLASLt).
/// Bits      CPU: an element depends only on its row and column of the factors, the depth and the
///           types, not on other sizes, threads or instruction set: kernels/cpu/matmul/matmul.h.
///           CUDA: fixed by (T, I, O), and whether there is a residual.
/// Residual  Added to the sum. CPU: after rounding, as residual_add does. CUDA: in the matmul; in
///           16 bits cuBLASLt's algorithm decides whether before or after rounding, and whether it
///           rounds once more before it adds a bias.
/// Workspace `linear_workspace_bytes`; fewer tokens never need more. CPU: packed pieces of the
///           factors, and sums of 16-bit outputs. CUDA: cuBLASLt's workspace (32 MiB; with less,
///           it uses other algorithms) and the partial sums of dbias.
/// Errors    mismatched sizes are a bug in Sherd (SHERD_CHECK). Nothing may alias the output.
///
/// GELU      With `gelu_input`, the matmul before or after GELU (kernels/activation.h) includes it.
///           Forward: gelu_input[t,o] receives the sum, and y its GELU. Backward: dx is multiplied
///           by GELU's slope at gelu_input[t,i], so it is the gradient of that input. CPU:
///           bit-identical to the two separate calls. CUDA: one kernel where cuBLASLt allows it
///           (kernels/device_common/matmul_key.h: 16 bits, rows of a multiple of 8 elements,
///           aligned), which applies GELU to the sum before rounding; else the two calls.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"

namespace sherd::kernels {

struct LinearShape {
  std::int64_t tokens = 0;   ///< T
  std::int64_t inputs = 0;   ///< I
  std::int64_t outputs = 0;  ///< O
};

struct LinearForward {
  LinearShape shape;
  ConstTensor x, w, bias;  ///< bias may be empty
  Tensor y;
  Tensor workspace;
  Tensor gelu_input{};       ///< [T, O]; may be empty
  ConstTensor residual{};    ///< [T, O]; may be empty; not with gelu_input
  bool interleaved = false;  ///< w's rows are interleaved: kernels/interleaved.h
};
void linear_forward(Stream& stream, const LinearForward& args);

struct LinearBackwardInput {
  LinearShape shape;
  ConstTensor dy, w;
  Tensor dx;
  bool add_to_output = false;
  Tensor workspace;
  ConstTensor gelu_input{};  ///< [T, I]; may be empty; not with add_to_output
};
void linear_backward_input(Stream& stream, const LinearBackwardInput& args);

struct LinearBackwardWeight {
  LinearShape shape;
  ConstTensor dy, x;
  Tensor dw, dbias;  ///< dbias may be empty
  bool add_to_output = false;
  Tensor workspace;
};
void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args);

/// Enough for all three at every shape with at most this many tokens, inputs and outputs: a pass
/// may be shorter than planned.
std::int64_t linear_workspace_bytes(const LinearShape& most, DType dtype, DType grad_dtype,
                                    const ComputeDevice& device);

/// Multiplications and additions per second of the calling thread in the innermost loop of CPU
/// matmuls of `dtype`, with operands in the L1 cache. Takes a few hundred microseconds.
double matmul_rate_of_a_thread(DType dtype);

}  // namespace sherd::kernels
