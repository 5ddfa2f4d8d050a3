#include "tests/support/oracles/oracle_activation.h"

#include <algorithm>
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

double gelu_erf(double x) {
  return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
}

double gelu_erf_derivative(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
         x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
}

double logistic(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// The activation of the gate, where there is one.
double value_of(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kGelu:
    case ActivationKind::kGeGlu:
      return gelu(x);
    case ActivationKind::kGeluErf:
      return gelu_erf(x);
    case ActivationKind::kRelu2:
      return x > 0.0 ? x * x : 0.0;
    case ActivationKind::kSwiGlu:
      return x * logistic(x);
    case ActivationKind::kClampedSwiGlu:
      return std::min(x, 7.0) * logistic(1.702 * std::min(x, 7.0));
  }
  return 0.0;
}

/// What a gate's activation is multiplied by, and its slope.
double factor_of(ActivationKind kind, double up) {
  return kind == ActivationKind::kClampedSwiGlu ? std::clamp(up, -7.0, 7.0) + 1.0 : up;
}
double factor_slope(ActivationKind kind, double up) {
  return kind == ActivationKind::kClampedSwiGlu && std::abs(up) > 7.0 ? 0.0 : 1.0;
}

double slope_of(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kGelu:
    case ActivationKind::kGeGlu:
      return gelu_derivative(x);
    case ActivationKind::kGeluErf:
      return gelu_erf_derivative(x);
    case ActivationKind::kRelu2:
      return x > 0.0 ? 2.0 * x : 0.0;
    case ActivationKind::kSwiGlu: {
      const double s = logistic(x);
      return s + x * s * (1.0 - s);
    }
    case ActivationKind::kClampedSwiGlu: {
      const double s = logistic(1.702 * x);
      return x > 7.0 ? 0.0 : s + 1.702 * x * s * (1.0 - s);
    }
  }
  return 0.0;
}

}  // namespace

Values activation_forward(const ActivationShape& shape, const Values& x) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto F = static_cast<std::size_t>(shape.width);
  Values y(T * F);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t f = 0; f < F; ++f) {
      if (!kernels::is_gated(shape.kind)) {
        y[t * F + f] = value_of(shape.kind, x[t * F + f]);
      } else {
        y[t * F + f] =
            value_of(shape.kind, x[t * 2 * F + f]) * factor_of(shape.kind, x[t * 2 * F + F + f]);
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
      if (!kernels::is_gated(shape.kind)) {
        dx[t * F + f] = d * slope_of(shape.kind, x[t * F + f]);
      } else {
        const double gate = x[t * 2 * F + f], up = x[t * 2 * F + F + f];
        dx[t * 2 * F + f] = d * factor_of(shape.kind, up) * slope_of(shape.kind, gate);
        dx[t * 2 * F + F + f] = d * value_of(shape.kind, gate) * factor_slope(shape.kind, up);
      }
    }
  }
  return dx;
}

}  // namespace sherd::oracle
