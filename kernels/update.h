/// One optimizer step over a flat slice, in one pass: gradient, moments and parameter are each read
/// and written once.
///
/// A slice is cut into segments that share a weight decay (a tensor, or the padding between two).
/// Everything is f32. `gradient_scale` (the clip factor) multiplies the gradient first.
///
/// AdamW (Loshchilov & Hutter 2019, Alg. 2), t = `time_step` >= 1:
///   g = gradient_scale * grad
///   m = beta1 m + (1 - beta1) g           v = beta2 v + (1 - beta2) g^2
///   p = p - lr * weight_decay * p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
/// SGD with momentum (PyTorch's form):
///   g = gradient_scale * grad + weight_decay * p;   m = momentum m + g;   p = p - lr * m
///   (momentum 0: m may be empty and p = p - lr * g)
///
/// Bits   element-wise and without contraction: an element's result doesn't depend on where the
///        slice was cut. Padding (zero gradient, zero parameter) stays zero.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// Elements [first, first + count) of a slice.
struct UpdateSegment {
  std::int64_t first = 0;
  std::int64_t count = 0;
  float weight_decay = 0.0f;
};

struct AdamWUpdate {
  Tensor parameter;
  ConstTensor gradient;
  Tensor exp_avg, exp_avg_sq;
  std::span<const UpdateSegment> segments;  ///< ascending, disjoint; must outlive the call
  float lr = 0.0f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  std::int64_t time_step = 1;
  float gradient_scale = 1.0f;
};
void adamw_update(Stream& stream, const AdamWUpdate& args);

struct SgdUpdate {
  Tensor parameter;
  ConstTensor gradient;
  Tensor momentum_buffer;  ///< may be empty if momentum is 0
  std::span<const UpdateSegment> segments;
  float lr = 0.0f, momentum = 0.0f;
  float gradient_scale = 1.0f;
};
void sgd_update(Stream& stream, const SgdUpdate& args);

}  // namespace sherd::kernels
