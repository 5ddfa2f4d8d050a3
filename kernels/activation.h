/// The feed-forward non-linearities.
///
///   gelu       y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
///   gelu_erf   y = 0.5 x (1 + erf(x / sqrt(2)))
///   relu2      y = max(x, 0)^2
///   swiglu     y[t,f] = g s(g) u,     g = x[t,f], u = x[t,F+f], s the logistic function
///   geglu      y[t,f] = gelu(g) u
///   clamped_swiglu  y[t,f] = g' s(1.702 g') (u' + 1),  g' = min(g, 7), u' = u within [-7, 7]
///
/// Sources  gelu: Hendrycks & Gimpel 2016, the tanh form and the exact one. relu2: So et al. 2021
///          (Primer). swiglu, geglu: Shazeer 2020. clamped_swiglu: OpenAI's gpt-oss.
/// Shapes   x, y [T, F]; gated ones (swiglu, geglu, clamped_swiglu): x [T, 2F] (gate, then up). Gradients have the
///          shape of their tensor.
/// Types    f32, bf16 or f16, one for all; computed in f32.
/// Alias    dx may be x. dx may be dy if both have the same shape (each element is read before it
///          is written).
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/kinds.h"

namespace sherd::kernels {

struct ActivationShape {
  ActivationKind kind = ActivationKind::kGelu;
  std::int64_t tokens = 0;  ///< T
  std::int64_t width = 0;   ///< F
};

struct ActivationForward {
  ActivationShape shape;
  ConstTensor x;
  Tensor y;
};
void activation_forward(Stream& stream, const ActivationForward& args);

struct ActivationBackward {
  ActivationShape shape;
  ConstTensor x, dy;
  Tensor dx;
};
void activation_backward(Stream& stream, const ActivationBackward& args);

}  // namespace sherd::kernels
