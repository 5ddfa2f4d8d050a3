#include "tests/support/oracles/oracle_values.h"

#include <cmath>

namespace sherd::oracle {

double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

::testing::AssertionResult is_gradient(const Values& gradient, Values x,
                                       const std::function<double(const Values&)>& loss) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-7;
  if (gradient.size() != x.size()) {
    return ::testing::AssertionFailure()
           << gradient.size() << " gradients of " << x.size() << " variables";
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    x[i] = center + kStep;
    const double above = loss(x);
    x[i] = center - kStep;
    const double below = loss(x);
    x[i] = center;
    const double difference = (above - below) / (2.0 * kStep);
    if (!(std::abs(gradient[i] - difference) <= kTolerance * (1.0 + std::abs(difference)))) {
      return ::testing::AssertionFailure() << "gradient [" << i << "] is " << gradient[i]
                                           << ", the central difference " << difference;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sherd::oracle
