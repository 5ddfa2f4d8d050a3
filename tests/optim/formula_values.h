/// Numbers that NumPy scripts make by the same formula (tests/reference/power_sgd.py, dion.py), and how they write down
/// what a tensor has become.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sherd::optim {

/// `value` of the scripts.
inline float formula(int what, int step, std::uint32_t parameter, std::int64_t element) {
  const std::int64_t i = ((element + 1) * 7919 + step * std::int64_t{104729} +
                          what * std::int64_t{1299709} + parameter * std::int64_t{15485863}) %
                         2001;
  return static_cast<float>(i * i % 2003 - 1001) / 1024.0f;
}

/// `digest` of the scripts, within rounding.
inline void expect_digest(const nlohmann::json& expected, const std::vector<float>& x,
                          const std::string& label) {
  double squares = 0.0, product = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares += static_cast<double>(x[i]) * x[i];
    product += static_cast<double>(x[i]) *
               static_cast<double>(formula(0, 77, 5, static_cast<std::int64_t>(i)));
  }
  const double norm = std::sqrt(squares), near = 2e-5 * (1.0 + norm);
  EXPECT_NEAR(norm, expected[0].get<double>(), near) << label;
  EXPECT_NEAR(product, expected[1].get<double>(), near) << label;
  EXPECT_NEAR(x.front(), expected[2].get<double>(), near) << label;
  EXPECT_NEAR(x.back(), expected[3].get<double>(), near) << label;
}

}  // namespace sherd::optim
