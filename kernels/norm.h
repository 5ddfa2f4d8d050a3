/// Residual addition and normalisation over the width, in one pass.
///
///   r[t,:]      = residual[t,:] + dropout(branch[t,:])            (branch may be absent: r =
///   residual) layernorm   y = (r - mean) * rstd * weight + bias             (Ba et al. 2016)
///   rmsnorm     y = r * rstd * weight,  mean = 0                  (Zhang & Sennrich 2019)
///               rstd = 1 / sqrt(variance + eps)  or  1 / sqrt(mean(r^2) + eps)
///
/// Backward, given dy and the gradient d_residual_out of r that comes from everything after:
///   dr        = d_residual_out + d(norm)/dr . dy
///   d_residual_in = dr,   d_branch = dropout mask * dr,   dweight[d] = sum_t dy xhat,  dbias[d] =
///   sum_t dy
///
/// Shapes    residual, branch, r, y [T, D]; weight, bias [D]; mean, rstd [T] (f32).
/// Types     activations and weight/bias of one type (f32, bf16, f16); dweight/dbias of their own;
///           sums in f32. What is normalised is r as stored, rounded to that type; d_branch is
///           taken from dr before dr is rounded.
/// Alias     residual_out may be residual; d_residual_in may be d_residual_out; d_branch may not
///           alias anything. y may not alias an input.
/// Bits      sums run over fixed lanes and row blocks; the number of threads changes nothing.
/// Workspace `norm_backward_workspace_bytes` (partial sums of dweight and dbias).
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/dropout.h"

namespace sherd::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };

struct NormShape {
  NormKind kind = NormKind::kLayerNorm;
  std::int64_t tokens = 0;  ///< T
  std::int64_t width = 0;   ///< D
  float eps = 1e-5f;
};

struct NormForward {
  NormShape shape;
  ConstTensor residual;
  ConstTensor branch;        ///< may be empty
  Dropout branch_dropout;    ///< element (t, d) of the branch is first_element + t * D + d
  ConstTensor weight, bias;  ///< bias may be empty
  Tensor residual_out;       ///< may be empty where there is no branch
  Tensor y, mean, rstd;      ///< mean may be empty for rmsnorm
};
void norm_forward(Stream& stream, const NormForward& args);

struct NormBackward {
  NormShape shape;
  ConstTensor residual;  ///< r of the forward
  ConstTensor mean, rstd, weight;
  ConstTensor dy;
  ConstTensor d_residual_out;  ///< may be empty (zero)
  Dropout branch_dropout;
  Tensor d_residual_in;
  Tensor d_branch;  ///< may be empty
  Tensor dweight,
      dbias;  ///< written, not added to, unless add_to_weight_gradients; dbias may be empty
  bool add_to_weight_gradients = false;
  Tensor workspace;
};
void norm_backward(Stream& stream, const NormBackward& args);
std::int64_t norm_backward_workspace_bytes(const NormShape& shape);

}  // namespace sherd::kernels
