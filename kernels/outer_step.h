/// The outer step of local updates (DiLoCo, Douillard et al. 2023, arXiv:2311.08105): what replicas
/// that trained apart do with the mean of their changes. All tensors are f32 of one size.
///
///   change[i] = old[i] - local[i]                          of each replica, then summed over them
///   d = sum[i] / replicas
///   b[i] = mu b[i] + d
///   old[i] = old[i] - rate (d + mu b[i])                   SGD with Nesterov momentum
///
/// Rounding every operation once, to f32. With mu 0 there is no b, and old[i] -= rate d.
/// CPU only.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// change[i] = old[i] - local[i]. change may be neither of them.
void outer_change(Stream& stream, ConstTensor old, ConstTensor local, Tensor change);

struct OuterStep {
  ConstTensor sum;  ///< of the changes of all replicas
  int replicas = 1;
  float rate = 1.0f, momentum = 0.0f;
  Tensor old;         ///< the weights after the previous exchange; updated
  Tensor velocity{};  ///< b; empty if `momentum` is 0
};
void outer_step(Stream& stream, const OuterStep& args);

}  // namespace sherd::kernels
