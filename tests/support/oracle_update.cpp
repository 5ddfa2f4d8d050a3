#include "tests/support/oracle_update.h"

#include <cmath>

namespace sherd::oracle {

Values weight_decays(std::span<const kernels::UpdateSegment> segments, std::int64_t numel) {
  Values decays(static_cast<std::size_t>(numel), 0.0);
  for (const kernels::UpdateSegment& segment : segments) {
    for (std::int64_t i = segment.first; i < segment.first + segment.count; ++i) {
      decays[static_cast<std::size_t>(i)] = static_cast<double>(segment.weight_decay);
    }
  }
  return decays;
}

void adamw_update(AdamWState& state, const Values& gradient, const kernels::AdamWUpdate& args) {
  const double lr = static_cast<double>(args.lr), eps = static_cast<double>(args.eps);
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const auto t = static_cast<double>(args.time_step);
  const double correction1 = 1.0 - std::pow(beta1, t), correction2 = 1.0 - std::pow(beta2, t);
  const Values decays = weight_decays(args.segments, static_cast<std::int64_t>(gradient.size()));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = static_cast<double>(args.gradient_scale) * gradient[i];
    double &p = state.parameter[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    m = beta1 * m + (1.0 - beta1) * g;
    v = beta2 * v + (1.0 - beta2) * g * g;
    const double m_hat = m / correction1;
    const double v_hat = v / correction2;
    p = p - lr * decays[i] * p - lr * m_hat / (std::sqrt(v_hat) + eps);
  }
}

void sgd_update(SgdState& state, const Values& gradient, const kernels::SgdUpdate& args) {
  const Values decays = weight_decays(args.segments, static_cast<std::int64_t>(gradient.size()));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& p = state.parameter[i];
    double g = static_cast<double>(args.gradient_scale) * gradient[i] + decays[i] * p;
    if (args.momentum != 0.0f) {
      double& m = state.momentum_buffer[i];
      g = m = static_cast<double>(args.momentum) * m + g;
    }
    p -= static_cast<double>(args.lr) * g;
  }
}

}  // namespace sherd::oracle
