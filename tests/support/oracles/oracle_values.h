/// The oracles implement every kernel again, as in a textbook, in double precision, without tiles,
/// vectors or threads. They share no code with `kernels/` except the shape structs.
///
/// An oracle's gradients are themselves checked against central differences of its forward, so that
/// a formula that is wrong in the same way in kernel and oracle can't pass.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace sherd::oracle {

using Values = std::vector<double>;

/// sum_i a[i] b[i]: <direction, output> is the scalar loss whose gradients tests check.
double dot(const Values& a, const Values& b);

/// Compares gradient[i] with (loss(x + h e_i) - loss(x - h e_i)) / 2h for every i, h = 1e-5. The
/// difference is accurate to about 1e-9 for values of order one; the tolerance is 1e-7.
::testing::AssertionResult is_gradient(const Values& gradient, Values x,
                                       const std::function<double(const Values&)>& loss);

}  // namespace sherd::oracle
