/// Residual addition and normalisation over the width, in one pass.
///
///   r[t,:]      = residual[t,:] + branch_scale * dropout(branch[t,:])    no branch: r = residual
///   layernorm   y = (r - mean) * rstd * w + bias,     rstd = 1 / sqrt(variance + eps)
///   rmsnorm     y = r * rstd * w + bias,  mean = 0,   rstd = 1 / sqrt(mean(r^2) + eps)
///
/// with w = weight_offset + weight. With an offset of 1, weights start at 0 and decay towards 0.
///
/// Backward, given dy and the gradient d_residual_out of r that comes from everything after, with
/// xhat = (r - mean) * rstd:
///
///   dr            = d_residual_out + d(norm)/dr . dy
///   d_residual_in = dr
///   d_branch      = branch_scale * dropout mask * dr
///   dweight[d]    = sum over t of dy[t,d] xhat[t,d]
///   dbias[d]      = sum over t of dy[t,d]
///
/// Sources   layernorm: Ba et al. 2016. rmsnorm: Zhang & Sennrich 2019.
/// Shapes    residual, branch, r, y [T, D]; weight, bias [D]; mean, rstd [T] (f32).
/// Types     activations and weight/bias of one type (f32, bf16, f16); dweight/dbias may have
///           another; sums in f32. The norm reads r as stored, rounded to that type; d_branch is
///           computed from dr before dr is rounded.
/// Alias     residual_out may be residual; d_residual_in may be d_residual_out or dy; d_branch may
///           not alias anything. y may not alias an input.
/// Bits      sums run over fixed lanes and row blocks; the number of threads changes nothing. With
///           token groups, dweight and dbias are f32 trees over them; each group is summed in
///           blocks of its own.
/// Workspace `norm_backward_workspace_bytes` (partial sums of dweight and dbias).
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/dropout.h"
#include "kernels/kinds.h"
#include "kernels/token_groups.h"

namespace sherd::kernels {

struct NormShape {
  NormKind kind = NormKind::kLayerNorm;
  std::int64_t tokens = 0;  ///< T
  std::int64_t width = 0;   ///< D
  float eps = 1e-5f;
  float weight_offset = 0.0f;
  TokenGroups groups{};  ///< for the weights' gradients; unsupported on a GPU
};

struct NormForward {
  NormShape shape;
  ConstTensor residual;
  ConstTensor branch;        ///< may be empty
  Dropout branch_dropout;    ///< element (t, d) of the branch is first_element + t * D + d
  ConstTensor weight, bias;  ///< bias may be empty
  Tensor residual_out;       ///< may be empty if there is no branch
  Tensor y, mean, rstd;      ///< mean may be empty for rmsnorm
  float branch_scale = 1.0f;
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
  float branch_scale = 1.0f;
};
void norm_backward(Stream& stream, const NormBackward& args);
/// Enough at every shape with at most this many tokens and this width.
std::int64_t norm_backward_workspace_bytes(const NormShape& most, const ComputeDevice& device);

}  // namespace sherd::kernels
