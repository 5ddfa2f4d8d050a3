#include "tests/support/oracles/oracle_pointwise.h"

#include <cmath>

namespace sherd::oracle {

double sum_of_squares(const Values& x) {
  return dot(x, x);
}

Values product(const Values& a, const Values& b) {
  Values out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] * b[i];
  return out;
}

Values sum(const std::vector<Values>& inputs) {
  Values out(inputs.front().size(), 0.0);
  for (const Values& input : inputs) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += input[i];
  }
  return out;
}

Moments moments_of(const Values& x) {
  const auto n = static_cast<double>(x.size());
  Moments m{0.0, 0.0, 0.0, 0.0};
  for (const double v : x) m.mean += v / n;
  for (const double v : x) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (const double v : x) {
    const double z = (v - m.mean) / std::sqrt(m.variance);
    m.skewness += z * z * z / n;
    m.kurtosis += z * z * z * z / n;
  }
  return m;
}

}  // namespace sherd::oracle
