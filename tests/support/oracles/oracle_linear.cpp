#include "tests/support/oracles/oracle_linear.h"

// T tokens, I inputs, O outputs.
namespace sherd::oracle {

using kernels::LinearShape;

Values linear_forward(const LinearShape& shape, const Values& x, const Values& w,
                      const Values& bias) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto I = static_cast<std::size_t>(shape.inputs);
  const auto O = static_cast<std::size_t>(shape.outputs);
  Values y(T * O);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t o = 0; o < O; ++o) {
      double sum = bias.empty() ? 0.0 : bias[o];
      for (std::size_t i = 0; i < I; ++i) sum += x[t * I + i] * w[o * I + i];
      y[t * O + o] = sum;
    }
  }
  return y;
}

Values linear_backward_input(const LinearShape& shape, const Values& dy, const Values& w) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto I = static_cast<std::size_t>(shape.inputs);
  const auto O = static_cast<std::size_t>(shape.outputs);
  Values dx(T * I, 0.0);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t o = 0; o < O; ++o) {
      for (std::size_t i = 0; i < I; ++i) dx[t * I + i] += dy[t * O + o] * w[o * I + i];
    }
  }
  return dx;
}

Values linear_backward_weight(const LinearShape& shape, const Values& dy, const Values& x) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto I = static_cast<std::size_t>(shape.inputs);
  const auto O = static_cast<std::size_t>(shape.outputs);
  Values dw(O * I, 0.0);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t o = 0; o < O; ++o) {
      for (std::size_t i = 0; i < I; ++i) dw[o * I + i] += dy[t * O + o] * x[t * I + i];
    }
  }
  return dw;
}

Values linear_backward_bias(const LinearShape& shape, const Values& dy) {
  const auto T = static_cast<std::size_t>(shape.tokens);
  const auto O = static_cast<std::size_t>(shape.outputs);
  Values dbias(O, 0.0);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t o = 0; o < O; ++o) dbias[o] += dy[t * O + o];
  }
  return dbias;
}

}  // namespace sherd::oracle
