#include "tests/support/oracle_activation.h"

#include <cmath>
#include <numbers>

// T tokens, F feed-forward width.
namespace sherd::oracle {
namespace {

using kernels::ActivationKind;
using kernels::ActivationShape;

const double kRootTwoOverPi = std::sqrt(2.0 / std::numbers::pi);

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x)));
}

double gelu_derivative(double x) {
  const double th = std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x));
  const double inner = kRootTwoOverPi * (1.0 + 3.0 * 0.044715 * x * x);
  return 0.5 * (1.0 + th) + 0.5 * x * (1.0 - th * th) * inner;
}

double logistic(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

Values activation_forward(const ActivationShape& shape, const Values& x) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto F = static_cast<std::size_t>(shape.width);
  Values y(T * F);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t f = 0; f < F; ++f) {
      if (shape.kind == ActivationKind::kGelu) {
        y[t * F + f] = gelu(x[t * F + f]);
      } else {
        const double gate = x[t * 2 * F + f], up = x[t * 2 * F + F + f];
        y[t * F + f] = gate * logistic(gate) * up;
      }
    }
  }
  return y;
}

Values activation_backward(const ActivationShape& shape, const Values& x, const Values& dy) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto F = static_cast<std::size_t>(shape.width);
  Values dx(x.size());
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t f = 0; f < F; ++f) {
      const double d = dy[t * F + f];
      if (shape.kind == ActivationKind::kGelu) {
        dx[t * F + f] = d * gelu_derivative(x[t * F + f]);
      } else {
        const double gate = x[t * 2 * F + f], up = x[t * 2 * F + F + f], s = logistic(gate);
        dx[t * 2 * F + f] = d * up * (s + gate * s * (1.0 - s));
        dx[t * 2 * F + F + f] = d * gate * s;
      }
    }
  }
  return dx;
}

}  // namespace sherd::oracle
