/// The experts of a mixture: each token's rows go through the gated MLPs of the experts that the
/// router chose (kernels/router.h), and what comes out is added up, weighted.
///
///   f_e(x)    = down_e activation(up_e x + b_e) + c_e      b, c: biases, or 0
///   y_t       = sum over chosen e of w_te f_e(x_t) (+ shared_t)   experts ascending, then `shared`
///   d_a       = down_e^T dy_t;   d_w_te = <d_a, a_te> + <dy_t, c_e>;   d_up = w_te d_a through the activation
///   d_down_e += dy_t (w_te a_te)^T;   d_up_e += d_up x_t^T
///   d_b_e    += d_up;   d_c_e += w_te dy_t
///   d_x_t     = sum over chosen e of up_e^T d_up (+ router_t) (+ shared_t)
///
/// With `weighs_input`, a weight multiplies what its expert reads, rounded to the type (Llama 4):
///
///   z_te  = w_te x_t;   y_t = sum over chosen e of f_e(z_te);   d_z = up_e^T d_up
///   d_w_te = <d_z, x_t>;   d_x_t = sum over chosen e of w_te d_z;   d_up_e += d_up z_te^T
///
/// Rounds    The rows of all tokens, sorted by expert, then by token, are cut into pieces of at
///           most kExpertPiece rows of one expert. A round takes as many whole pieces as the
///           buffers have rows for. So memory is the same for every routing; an uneven one takes no
///           more rounds on one rank, since all rows are here.
/// Kept      nothing per row: the backward computes up and the activation again.
/// Shapes    x, y, dy, d_x [T, D]; up [E U, D], an expert's rows one after another; down [E D, F];
///           U = 2 F where the activation is gated, else F. chosen i32, weights, d_weights f32
///           [T, k]
/// Types     x, y and matrices f32, bf16 or f16; gradients of the matrices f32 or the same. f_e(x)
///           and d_x of a row are rounded to the type; the sums over experts are f32 and are
///           rounded once.
/// Bits      a row's results follow from the row and its expert's matrices. A gradient adds pieces
///           in order. So nothing depends on the buffers' rows, nor on threads.
/// Gradients d_up, d_down are empty where the matrices are frozen. An expert without rows gets
///           zeros, or with `add` stays as it is.
/// GPU       The rows of an expert in a round are one product, for which cuBLASLt's algorithm doesn't
///           depend on how many they are (kernels/cuda/expert_products.h). The host must know how
///           many rows each expert has before it enqueues products: it waits for
///           `expert_row_counts` once, after the router has decided. With `grouped`, one launch of
///           cuDNN multiplies all experts of a round (kernels/cuda/grouped_products.h).
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/expert_adapters.h"
#include "kernels/kinds.h"

namespace sherd::kernels {

inline constexpr std::int64_t kExpertPiece = 512;

struct ExpertsShape {
  std::int64_t tokens = 0, width = 0;       ///< T, D
  std::int64_t experts = 0, ffn_width = 0;  ///< E, F
  int per_token = 1;                        ///< k
  ActivationKind activation = ActivationKind::kSwiGlu;
  bool weighs_input = false;
  std::int64_t buffer_rows = 0;  ///< of a round; at least one piece
  bool grouped = false;          ///< on a GPU: kernels/cuda/grouped_products.h

  std::int64_t up_width() const { return (is_gated(activation) ? 2 : 1) * ffn_width; }
};

/// Buffers of a round of C rows, and for the order of all rows.
struct ExpertsWorkspace {
  Tensor sums;                    ///< f32 [T, D]; of the forward
  Tensor rows;                    ///< [C, D]
  Tensor up;                      ///< [C, U]
  Tensor activated, d_activated;  ///< [C, F]; the second of the backward
  Tensor order;                   ///< i32 [experts_order_numel]
  Tensor matmuls;                 ///< experts_workspace_bytes
};

/// b [E U] and c [E D] of the matrices' type, or empty. Of tensor ranks, one alone has c.
struct ExpertBiases {
  ConstTensor up{}, down{};
  explicit operator bool() const { return static_cast<bool>(up); }
};
/// Their gradients, of the matrices' gradients' type; empty if they are frozen.
struct ExpertBiasGradients {
  Tensor up{}, down{};
};

/// On a GPU: sorts the rows, waits, and writes how many rows each expert has, as `experts_forward`
/// and `experts_backward` of these choices need it. On a CPU it does nothing.
struct ExpertRowCounts {
  ExpertsShape shape;
  ConstTensor chosen;
  Tensor order;                  ///< i32 [experts_order_numel]
  std::span<std::int32_t> rows;  ///< [E], host memory
};
void expert_row_counts(Stream& stream, const ExpertRowCounts& args);

struct ExpertsForward {
  ExpertsShape shape;
  ConstTensor x, up, down, chosen, weights;
  ExpertBiases biases{};
  ConstTensor shared{};  ///< [T, D], added last; may be empty
  Tensor y;              ///< may be `shared`
  ExpertsWorkspace workspace;
  std::span<const std::int32_t> rows{};  ///< of expert_row_counts, on a GPU
  ExpertAdapters adapters{};
};
void experts_forward(Stream& stream, const ExpertsForward& args);

struct ExpertsBackward {
  ExpertsShape shape;
  ConstTensor x, dy, up, down, chosen, weights;
  Tensor d_weights;
  /// f32 [T, D]: the sum over experts of d_x, before it is rounded. Empty: not needed.
  Tensor d_sum;
  Tensor d_up{}, d_down{};
  bool adds_up = false, adds_down = false;
  ExpertsWorkspace workspace;
  ExpertBiases biases{};
  ExpertBiasGradients d_biases{};
  std::span<const std::int32_t> rows{};  ///< as in the forward
  ExpertAdapters adapters{};             ///< with gradients
};
void experts_backward(Stream& stream, const ExpertsBackward& args);

/// d_x = d_sum (+ router) (+ shared), added in this order and rounded once.
struct ExpertsInputGradient {
  ConstTensor d_sum, router, shared;  ///< f32, f32, d_x's type; the latter two may be empty
  Tensor d_x;
};
void experts_input_gradient(Stream& stream, const ExpertsInputGradient& args);

/// The gate of an expert that every token goes through, for T tokens of width D:
///
///   logit[t] = <gate, x_t>;   y_t = s(logit[t]) shared_t                  s: the logistic function
///   d_shared_t = s dy_t;      d_logit[t] = s (1 - s) <dy_t, shared_t>;    d_x_t += d_logit[t] gate
///   d_gate = sum over t, in order, of d_logit[t] x_t
///
/// logits, d_logits f32 [T]; d_x f32 [T, D]; d_gate [D] of any type; the rest of one type.
struct GateLogits {
  std::int64_t tokens = 0, width = 0;
  ConstTensor x, gate;
  Tensor logits;
};
void gate_logits(Stream& stream, const GateLogits& args);

struct GateForward {
  std::int64_t tokens = 0, width = 0;
  ConstTensor logits, shared;
  Tensor y;
};
void gate_forward(Stream& stream, const GateForward& args);

struct GateBackward {
  std::int64_t tokens = 0, width = 0;
  ConstTensor logits, shared, gate, dy;
  Tensor d_shared, d_logits;
  Tensor d_x;  ///< added to; empty: nobody needs it
};
void gate_backward(Stream& stream, const GateBackward& args);

struct GateWeightGradient {
  std::int64_t tokens = 0, width = 0;
  ConstTensor x, d_logits;
  Tensor d_gate;
  bool add = false;
};
void gate_weight_gradient(Stream& stream, const GateWeightGradient& args);

/// Numbers that give the rows' order.
inline std::int64_t experts_order_numel(const ExpertsShape& shape) {
  return 2 * shape.tokens * shape.per_token + shape.experts + 1;
}
/// Of the matmuls.
std::int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype, DType grad_dtype,
                                     const ComputeDevice& device);
/// Rows of the buffer that are worth having: no more than all rows, no less than one piece.
std::int64_t experts_buffer_rows(const ExpertsShape& shape);

}  // namespace sherd::kernels
