#include "tests/support/runs/whole_tensor_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <numbers>

#include "core/error.h"
#include "kernels/philox.h"

namespace sherd::oracle {
namespace {

using optim::OptimizerType;

Values filled(const ParameterSpec& spec, const ElementValue& value) {
  Values values(static_cast<std::size_t>(spec.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value(spec.index, static_cast<std::int64_t>(i));
  }
  return values;
}

// The matrices stacked in one tensor, each orthogonalised and scaled by itself.
Values muon_direction(const ParameterSpec& spec, const Values& update, bool polar_express) {
  const std::int64_t columns = spec.shape[1];
  const std::vector<std::int64_t> all_rows =
      spec.matrix_rows.empty() ? std::vector{spec.shape[0]} : spec.matrix_rows;
  Values direction;
  for (const std::int64_t rows : all_rows) {
    const auto first = update.begin() + static_cast<std::ptrdiff_t>(direction.size());
    const Values matrix =
        orthogonalise({first, first + rows * columns}, rows, columns, DType::kF64, polar_express);
    const double ratio =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    for (const double value : matrix) direction.push_back(ratio * value);
  }
  return direction;
}

}  // namespace

WholeTensorOptimizer::WholeTensorOptimizer(const optim::OptimizerOptions& options,
                                           const std::vector<UnitSpec>& units,
                                           const ElementValue& initial)
    : options_(options) {
  SHERD_CHECK(options.decay.no_decay.empty());
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& spec : unit.parameters) {
      SHERD_CHECK(spec.index == tensors_.size());
      const auto count = static_cast<std::size_t>(spec.numel());
      const Values zero(count, 0.0);
      tensors_.push_back({spec,
                          is_of_layers(unit.unit_class),
                          {filled(spec, initial), zero, zero},
                          Values(count, std::numeric_limits<double>::infinity())});
    }
  }
  ratios_.assign(tensors_.size(), 1.0);
}

void WholeTensorOptimizer::step(const optim::UpdateStep& step, const ElementValue& gradient_of) {
  for (Tensor& tensor : tensors_) {
    const bool decays = tensor.spec.shape.size() >= 2;
    const kernels::UpdateSegment whole{0, tensor.spec.numel(), decays ? options_.decay.rate : 0.0f};
    kernels::UpdateCommon common;
    common.segments = {&whole, 1};
    common.lr = step.lr;
    common.gradient_scale = step.gradient_scale;
    const Values gradient = filled(tensor.spec, gradient_of);
    switch (options_.type) {
      case OptimizerType::kAdamW:
      case OptimizerType::kAdam:
        step_adam(tensor, gradient, common, step.update_number);
        break;
      case OptimizerType::kSgd:
        sgd_update(tensor.state, gradient, {common, {}, options_.momentum});
        break;
      case OptimizerType::kLion:
        step_lion(tensor, gradient, common);
        break;
      case OptimizerType::kLamb:
        step_lamb(tensor, gradient, common, step.update_number);
        break;
      case OptimizerType::kLars:
        step_lars(tensor, gradient, common);
        break;
      case OptimizerType::kAdafactor:
        step_adafactor(tensor, gradient, step, whole.weight_decay);
        break;
      case OptimizerType::kMuon:
      case OptimizerType::kDion:
        if (tensor.in_block && decays) {
          options_.type == OptimizerType::kMuon ? step_muon(tensor, gradient, common)
                                                : step_dion(tensor, gradient, common);
        } else {
          common.lr *= options_.adamw_lr_ratio;
          step_adam(tensor, gradient, common, step.update_number);
        }
        break;
    }
  }
}

void WholeTensorOptimizer::step_adam(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common,
                                     std::int64_t update_number) const {
  kernels::AdamUpdate args;
  args.common = common;
  args.decoupled_decay = options_.type != OptimizerType::kAdam;
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.eps = options_.eps;
  args.update_number = update_number;
  adam_update(tensor.state, gradient, args);
}

void WholeTensorOptimizer::step_lion(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common) const {
  const double beta1 = options_.beta1, scale = common.gradient_scale;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double direction =
        beta1 * tensor.state.first_moment[i] + (1.0 - beta1) * scale * gradient[i];
    double& smallest = tensor.smallest_direction[i];
    smallest = std::min(smallest, std::abs(direction));
  }
  lion_update(tensor.state, gradient, {common, {}, options_.beta1, options_.beta2});
}

void WholeTensorOptimizer::step_lamb(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common,
                                     std::int64_t update_number) {
  kernels::LambUpdate args;
  args.common = common;
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.eps = options_.eps;
  args.update_number = update_number;
  lamb_moments(tensor.state, gradient, args);
  const SegmentNorms squares = lamb_norms(tensor.state, args);
  const double p = std::sqrt(squares.parameter[0]), r = std::sqrt(squares.other[0]);
  double& ratio = ratios_[tensor.spec.index];
  ratio = p == 0.0 || r == 0.0 ? 1.0 : p / r;
  lamb_apply(tensor.state, args, {ratio});
}

void WholeTensorOptimizer::step_lars(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common) {
  const kernels::LarsUpdate args{common, {}, options_.momentum};
  const SegmentNorms squares = lars_norms(tensor.state, gradient, args);
  const double p = std::sqrt(squares.parameter[0]), g = std::sqrt(squares.other[0]);
  const double decay = common.segments[0].weight_decay;
  double& ratio = ratios_[tensor.spec.index];
  ratio = p == 0.0 || g == 0.0
              ? 1.0
              : static_cast<double>(options_.trust_coefficient) * p / (g + decay * p);
  lars_apply(tensor.state, gradient, args, {ratio});
}

namespace {

double mean_of_squares(const Values& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

// As in the documentation of torch.optim.Adafactor.
void WholeTensorOptimizer::step_adafactor(Tensor& tensor, const Values& gradient,
                                          const optim::UpdateStep& step,
                                          double weight_decay) const {
  const auto& shape = tensor.spec.shape;
  const bool is_matrix = shape.size() > 1;
  const auto rows = static_cast<std::size_t>(is_matrix ? shape[0] : 1);
  const auto columns = static_cast<std::size_t>(shape.back());
  Values &row = tensor.state.first_moment, &column = tensor.state.second_moment;
  const auto t = static_cast<double>(step.update_number);
  const double fresh = std::pow(t, static_cast<double>(options_.beta2_decay));
  Values row_mean(rows, 0.0), column_mean(columns, 0.0), u(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    u[i] = step.gradient_scale * gradient[i];
    row_mean[i / columns] += u[i] * u[i] / static_cast<double>(columns);
    column_mean[i % columns] += u[i] * u[i] / static_cast<double>(rows);
  }
  double all = 0.0;
  for (std::size_t r = 0; r < rows; ++r) {
    row[r] += fresh * (row_mean[r] - row[r]);
    all += row[r] / static_cast<double>(rows);
  }
  for (std::size_t c = 0; c < columns; ++c) column[c] += fresh * (column_mean[c] - column[c]);
  const double eps = options_.eps;
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double of_row = is_matrix ? row[i / columns] / std::max(all, eps) : 1.0;
    u[i] /= std::sqrt(std::max(of_row * column[i % columns], eps * eps));
  }
  Values& p = tensor.state.parameter;
  const double size = std::max<double>(options_.min_parameter_rms, std::sqrt(mean_of_squares(p)));
  const double rate = size * std::min<double>(step.lr, 1.0 / std::sqrt(t)) /
                      std::max(1.0, std::sqrt(mean_of_squares(u)) / options_.clip_threshold);
  for (std::size_t i = 0; i < u.size(); ++i) {
    p[i] -= static_cast<double>(step.lr) * weight_decay * p[i] + rate * u[i];
  }
}

void WholeTensorOptimizer::step_muon(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common) const {
  const kernels::MuonUpdate args{common, {}, {}, options_.momentum};
  const Values update = muon_momentum(tensor.state, gradient, args);
  const bool polar_express = options_.muon_coefficients == optim::MuonCoefficients::kPolarExpress;
  muon_apply(tensor.state, muon_direction(tensor.spec, update, polar_express), args, {1.0});
}

namespace {

// kernels/pointwise.h's normal numbers, at the address that optim/matrices/dion.cpp gives a basis.
Values first_basis(std::uint64_t seed, std::uint32_t index, std::uint32_t number,
                   std::size_t numel) {
  Values basis;
  for (std::size_t i = 0; i < numel; ++i) {
    const auto block = kernels::random_block({seed, 0x44696f6e + number, index}, i / 2);
    const double a = block.word[i % 2 * 2], b = block.word[i % 2 * 2 + 1];
    basis.push_back(static_cast<float>(std::sqrt(-2.0 * std::log((a + 1.0) / 0x1p32)) *
                                       std::cos(2.0 * std::numbers::pi * b / 0x1p32)));
  }
  return basis;
}

// The vectors of x, one after another, become orthonormal.
void make_orthonormal(Values& x, std::size_t length) {
  for (std::size_t begin = 0; begin < x.size(); begin += length) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other <= begin; other += length) {
        double dot = 0.0;
        for (std::size_t k = 0; k < length; ++k) dot += x[begin + k] * x[other + k];
        for (std::size_t k = 0; k < length; ++k) {
          x[begin + k] =
              other == begin ? x[begin + k] / std::sqrt(dot) : x[begin + k] - dot * x[other + k];
        }
      }
    }
  }
}

}  // namespace

// The equations of optim/matrices/dion.h, matrix by matrix, as they are written there.
void WholeTensorOptimizer::step_dion(Tensor& tensor, const Values& gradient,
                                     const kernels::UpdateCommon& common) const {
  const auto n = static_cast<std::size_t>(tensor.spec.shape[1]);
  const std::vector<std::int64_t> all_rows =
      tensor.spec.matrix_rows.empty() ? std::vector{tensor.spec.shape[0]} : tensor.spec.matrix_rows;
  Values &x = tensor.state.parameter, &momentum = tensor.state.first_moment;
  std::size_t first = 0, number = 0;
  for (const std::int64_t rows : all_rows) {
    const auto m = static_cast<std::size_t>(rows);
    const double side = static_cast<double>(std::min(m, n));
    const auto rank = static_cast<std::size_t>(std::ceil(options_.dion_rank_fraction * side));
    if (tensor.bases.size() <= number) {
      tensor.bases.push_back(first_basis(options_.moment_type.seed, tensor.spec.index,
                                         static_cast<std::uint32_t>(number), rank * n));
    }
    Values& q = tensor.bases[number++];
    double* const M = momentum.data() + first;
    for (std::size_t i = 0; i < m * n; ++i) {
      M[i] += static_cast<double>(common.gradient_scale) * gradient[first + i];
    }
    Values p(rank * m, 0.0), r(rank * n, 0.0);
    for (std::size_t c = 0; c < rank; ++c) {
      for (std::size_t i = 0; i < m * n; ++i) p[c * m + i / n] += M[i] * q[c * n + i % n];
    }
    make_orthonormal(p, m);
    for (std::size_t c = 0; c < rank; ++c) {
      double squares = 0.0;
      for (std::size_t i = 0; i < m * n; ++i) r[c * n + i % n] += M[i] * p[c * m + i / n];
      for (std::size_t j = 0; j < n; ++j) squares += r[c * n + j] * r[c * n + j];
      for (std::size_t j = 0; j < n; ++j) q[c * n + j] = r[c * n + j] / std::sqrt(squares);
    }
    const double lr = common.lr, kept = 1.0 - static_cast<double>(options_.momentum);
    const double rate = lr * std::sqrt(static_cast<double>(m) / static_cast<double>(n));
    for (std::size_t i = 0; i < m * n; ++i) {
      double used = 0.0, update = 0.0;
      for (std::size_t c = 0; c < rank; ++c) {
        used += p[c * m + i / n] * r[c * n + i % n];
        update += p[c * m + i / n] * q[c * n + i % n];
      }
      M[i] -= kept * used;
      double& element = x[first + i];
      element -= lr * static_cast<double>(common.segments[0].weight_decay) * element;
      element -= rate * update;
    }
    first += m * n;
  }
}

}  // namespace sherd::oracle
