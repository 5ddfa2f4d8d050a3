#include "tests/support/oracles/oracle_norm.h"

#include <cmath>

// T tokens, D width.
namespace sherd::oracle {

using kernels::NormKind;
using kernels::NormShape;

Values masked_sum(const Values& residual, const Values& branch, const Values& mask) {
  Values sum(residual.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = residual[i] + mask[i] * branch[i];
  return sum;
}

Norm norm_forward(const NormShape& shape, const Values& residual, const Values& weight,
                  const Values& bias) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto D = static_cast<std::size_t>(shape.width);
  Norm out{Values(T * D), Values(T, 0.0), Values(T)};
  for (std::size_t t = 0; t < T; ++t) {
    const double* r = &residual[t * D];
    if (shape.kind == NormKind::kLayerNorm) {
      for (std::size_t d = 0; d < D; ++d) out.mean[t] += r[d] / static_cast<double>(D);
    }
    double variance = 0.0;
    for (std::size_t d = 0; d < D; ++d) {
      variance += (r[d] - out.mean[t]) * (r[d] - out.mean[t]) / static_cast<double>(D);
    }
    out.rstd[t] = 1.0 / std::sqrt(variance + static_cast<double>(shape.eps));
    for (std::size_t d = 0; d < D; ++d) {
      out.y[t * D + d] = (r[d] - out.mean[t]) * out.rstd[t] *
                             (weight[d] + static_cast<double>(shape.weight_offset)) +
                         (bias.empty() ? 0.0 : bias[d]);
    }
  }
  return out;
}

NormGradients norm_backward(const NormShape& shape, const Values& residual, const Values& weight,
                            const Values& dy, const Values& d_residual_out) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto D = static_cast<std::size_t>(shape.width);
  const Norm norm = norm_forward(shape, residual, weight, {});
  NormGradients out{Values(T * D), Values(D, 0.0), Values(D, 0.0)};
  for (std::size_t t = 0; t < T; ++t) {
    const auto xhat = [&](std::size_t d) {
      return (residual[t * D + d] - norm.mean[t]) * norm.rstd[t];
    };
    const auto dxhat = [&](std::size_t d) {
      return dy[t * D + d] * (weight[d] + static_cast<double>(shape.weight_offset));
    };
    double mean_dxhat = 0.0, mean_dxhat_xhat = 0.0;
    for (std::size_t d = 0; d < D; ++d) {
      mean_dxhat += dxhat(d) / static_cast<double>(D);
      mean_dxhat_xhat += dxhat(d) * xhat(d) / static_cast<double>(D);
      out.dweight[d] += dy[t * D + d] * xhat(d);
      out.dbias[d] += dy[t * D + d];
    }
    if (shape.kind == NormKind::kRmsNorm) mean_dxhat = 0.0;
    for (std::size_t d = 0; d < D; ++d) {
      out.d_residual[t * D + d] =
          (d_residual_out.empty() ? 0.0 : d_residual_out[t * D + d]) +
          norm.rstd[t] * (dxhat(d) - mean_dxhat - xhat(d) * mean_dxhat_xhat);
    }
  }
  return out;
}

}  // namespace sherd::oracle
