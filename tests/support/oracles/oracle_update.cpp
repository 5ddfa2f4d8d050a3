#include "tests/support/oracles/oracle_update.h"

#include <cmath>

#include "tests/support/values/tensors.h"

namespace sherd::oracle {
namespace {

using kernels::UpdateCommon;

struct Element {
  std::size_t index, segment;
  double weight_decay;
};

template <class Function>
void for_each_element(const UpdateCommon& common, Function&& function) {
  for (std::size_t s = 0; s < common.segments.size(); ++s) {
    const kernels::UpdateSegment& segment = common.segments[s];
    for (std::int64_t i = segment.first; i < segment.first + segment.count; ++i) {
      function(Element{static_cast<std::size_t>(i), s, static_cast<double>(segment.weight_decay)});
    }
  }
}

double scaled(const UpdateCommon& common, double gradient) {
  return static_cast<double>(common.gradient_scale) * gradient;
}

double lr_of(const UpdateCommon& common) {
  return static_cast<double>(common.lr);
}

double sign_of(double x) {
  return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
}

// 1 - beta^t: what a moment that began at zero lacks.
double correction(float beta, std::int64_t update_number) {
  return 1.0 - std::pow(static_cast<double>(beta), static_cast<double>(update_number));
}

void average(double& moment, float beta, double value) {
  moment = static_cast<double>(beta) * moment + (1.0 - static_cast<double>(beta)) * value;
}

Values lamb_direction(const UpdateState& state, const kernels::LambUpdate& args) {
  const double correction1 = correction(args.beta1, args.update_number);
  const double correction2 = correction(args.beta2, args.update_number);
  Values direction(state.parameter.size(), 0.0);
  for_each_element(args.common, [&](const Element& e) {
    direction[e.index] = state.first_moment[e.index] / correction1 /
                             (std::sqrt(state.second_moment[e.index] / correction2) +
                              static_cast<double>(args.eps)) +
                         e.weight_decay * state.parameter[e.index];
  });
  return direction;
}

SegmentNorms squares(const UpdateCommon& common, const Values& parameter, const Values& other) {
  SegmentNorms sums{Values(common.segments.size(), 0.0), Values(common.segments.size(), 0.0)};
  for_each_element(common, [&](const Element& e) {
    sums.parameter[e.segment] += parameter[e.index] * parameter[e.index];
    sums.other[e.segment] += other[e.index] * other[e.index];
  });
  return sums;
}

}  // namespace

void adam_update(UpdateState& state, const Values& gradient, const kernels::AdamUpdate& args) {
  const double correction1 = correction(args.beta1, args.update_number);
  const double correction2 = correction(args.beta2, args.update_number);
  for_each_element(args.common, [&](const Element& e) {
    double& p = state.parameter[e.index];
    double g = scaled(args.common, gradient[e.index]);
    if (!args.decoupled_decay) g += e.weight_decay * p;
    average(state.first_moment[e.index], args.beta1, g);
    average(state.second_moment[e.index], args.beta2, g * g);
    if (args.decoupled_decay) p -= lr_of(args.common) * e.weight_decay * p;
    p -= lr_of(args.common) * (state.first_moment[e.index] / correction1) /
         (std::sqrt(state.second_moment[e.index] / correction2) + static_cast<double>(args.eps));
  });
}

void sgd_update(UpdateState& state, const Values& gradient, const kernels::SgdUpdate& args) {
  for_each_element(args.common, [&](const Element& e) {
    double& p = state.parameter[e.index];
    double g = scaled(args.common, gradient[e.index]) + e.weight_decay * p;
    if (args.momentum != 0.0f) {
      double& m = state.first_moment[e.index];
      g = m = static_cast<double>(args.momentum) * m + g;
    }
    p -= lr_of(args.common) * g;
  });
}

void lion_update(UpdateState& state, const Values& gradient, const kernels::LionUpdate& args) {
  for_each_element(args.common, [&](const Element& e) {
    double& p = state.parameter[e.index];
    const double g = scaled(args.common, gradient[e.index]);
    double direction = state.first_moment[e.index];
    average(direction, args.beta1, g);
    p -= lr_of(args.common) * (sign_of(direction) + e.weight_decay * p);
    average(state.first_moment[e.index], args.beta2, g);
  });
}

void lamb_moments(UpdateState& state, const Values& gradient, const kernels::LambUpdate& args) {
  for_each_element(args.common, [&](const Element& e) {
    const double g = scaled(args.common, gradient[e.index]);
    average(state.first_moment[e.index], args.beta1, g);
    average(state.second_moment[e.index], args.beta2, g * g);
  });
}

SegmentNorms lamb_norms(const UpdateState& state, const kernels::LambUpdate& args) {
  return squares(args.common, state.parameter, lamb_direction(state, args));
}

void lamb_apply(UpdateState& state, const kernels::LambUpdate& args, const Values& ratios) {
  const Values direction = lamb_direction(state, args);
  for_each_element(args.common, [&](const Element& e) {
    state.parameter[e.index] -= lr_of(args.common) * ratios[e.segment] * direction[e.index];
  });
}

SegmentNorms lars_norms(const UpdateState& state, const Values& gradient,
                        const kernels::LarsUpdate& args) {
  Values g = gradient;
  for (double& value : g) value = scaled(args.common, value);
  return squares(args.common, state.parameter, g);
}

void lars_apply(UpdateState& state, const Values& gradient, const kernels::LarsUpdate& args,
                const Values& ratios) {
  for_each_element(args.common, [&](const Element& e) {
    double &p = state.parameter[e.index], &m = state.first_moment[e.index];
    const double g = scaled(args.common, gradient[e.index]) + e.weight_decay * p;
    m = static_cast<double>(args.momentum) * m + lr_of(args.common) * ratios[e.segment] * g;
    p -= m;
  });
}

Values muon_momentum(UpdateState& state, const Values& gradient, const kernels::MuonUpdate& args) {
  Values update(gradient.size(), 0.0);
  for_each_element(args.common, [&](const Element& e) {
    const double g = scaled(args.common, gradient[e.index]);
    average(state.first_moment[e.index], args.momentum, g);
    update[e.index] = state.first_moment[e.index];
    average(update[e.index], args.momentum, g);  // Nesterov: the gradient once more
  });
  return update;
}

void muon_apply(UpdateState& state, const Values& update, const kernels::MuonUpdate& args,
                const Values& ratios) {
  for_each_element(args.common, [&](const Element& e) {
    double& p = state.parameter[e.index];
    p -= lr_of(args.common) * (e.weight_decay * p + ratios[e.segment] * update[e.index]);
  });
}

namespace {

struct Matrix {
  std::size_t rows, columns;
  Values values;

  double& at(std::size_t i, std::size_t j) { return values[i * columns + j]; }
  double at(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
};

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, Values(a.values.size())};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, Values(a.rows * b.columns, 0.0)};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.columns; ++k) {
      for (std::size_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Matrix combined(double a, const Matrix& x, double b, const Matrix& y) {
  Matrix sum = x;
  for (std::size_t i = 0; i < sum.values.size(); ++i) {
    sum.values[i] = a * x.values[i] + b * y.values[i];
  }
  return sum;
}

}  // namespace

Values orthogonalise(const Values& matrix, std::int64_t rows, std::int64_t columns, DType dtype,
                     bool polar_express) {
  const auto round = [&](Matrix x) {
    if (dtype == DType::kBF16) x.values = test::rounded(dtype, x.values);
    return x;
  };
  Matrix x{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), matrix};
  const double norm = polar_express ? 1.02 * std::sqrt(dot(matrix, matrix)) + 1e-6
                                    : std::sqrt(dot(matrix, matrix)) + 1e-7;
  for (double& value : x.values) value /= norm;
  x = round(rows > columns ? transposed(x) : x);
  // arXiv:2505.16932, for five steps with a safety factor of 2e-2.
  constexpr double kPolarExpress[5][3] = {
      {8.156554524902461, -22.48329292557795, 15.878769915207462},
      {4.042929935166739, -2.808917465908714, 0.5000178451051316},
      {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
      {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
      {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  constexpr double kJordan[3] = {3.4445, -4.7750, 2.0315};
  for (const auto& of_step : kPolarExpress) {
    const double* numbers = polar_express ? of_step : kJordan;
    const Matrix a = round(times(x, transposed(x)));
    const Matrix polynomial = round(combined(numbers[1], a, numbers[2], round(times(a, a))));
    x = round(combined(numbers[0], x, 1.0, round(times(polynomial, x))));
  }
  return rows > columns ? transposed(x).values : x.values;
}

}  // namespace sherd::oracle
