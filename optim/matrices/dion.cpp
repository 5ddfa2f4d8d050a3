#include "optim/matrices/dion.h"

#include <algorithm>
#include <cmath>

#include "kernels/columns.h"
#include "kernels/low_rank.h"
#include "optim/matrices/dion_factors.h"
#include "optim/matrices/matrix_optimizer.h"

namespace sherd::optim {
namespace {

// Where a matrix's factors are: P [rank, rows] and R [rank, columns], one after the other, among the
// unit's; Q [rank, columns] in the unit's basis. The matrix is a whole one.
struct Factors {
  std::int64_t rank = 0, rows = 0, columns = 0;
  std::int64_t first = 0, in_basis = 0;

  std::int64_t p_numel() const { return rank * rows; }
  std::int64_t q_numel() const { return rank * columns; }
  std::int64_t numel() const { return p_numel() + q_numel(); }
};

// Numbers of a parameter's Q before those of its matrix `number`.
std::int64_t basis_before(const OptimizerOptions& options, const ParameterSpec& parameter,
                          int number) {
  std::int64_t before = 0;
  const std::vector<MatrixPart> matrices = whole_matrices(parameter);
  for (int i = 0; i < number; ++i) {
    const MatrixPart& matrix = matrices[static_cast<std::size_t>(i)];
    before += dion_rank(options, matrix) * matrix.columns;
  }
  return before;
}

struct UnitFactors {
  std::vector<Factors> of;  ///< of each matrix
  std::int64_t numel = 0, basis_numel = 0;
};

UnitFactors factors_of(const OptimizerOptions& options, const std::vector<OwnedMatrix>& matrices) {
  UnitFactors unit;
  for (const OwnedMatrix& matrix : matrices) {
    const MatrixPart& part = matrix.part;
    unit.of.push_back({dion_rank(options, part), part.whole_rows, part.whole_columns, unit.numel,
                       unit.basis_numel});
    unit.numel += unit.of.back().numel();
    unit.basis_numel += unit.of.back().q_numel();
  }
  return unit;
}

struct DionBuffers {
  MatrixBuffers common;
  std::vector<std::optional<BufferSpec>> basis;  // by unit
  std::optional<BufferSpec> factors, part_factors, workspace;

  std::vector<BufferSpec> list(int tensor_degree) const {
    std::vector<BufferSpec> all = common.list(tensor_degree);
    const auto add = [&](const std::optional<BufferSpec>& buffer) {
      if (buffer) all.push_back(*buffer);
    };
    for (const auto& each : basis) add(each);
    for (const auto* each : {&factors, &part_factors, &workspace}) add(*each);
    return all;
  }
};

DionBuffers dion_buffers_of(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                            int rank) {
  DionBuffers buffers{matrix_buffers(options, plan, rank, "dion"), {}, {}, {}, {}};
  std::int64_t factors = 0;
  for (const sharding::UnitPlan& unit : plan.units) {
    const UnitFactors own = factors_of(options, matrices_of(options, unit));
    factors = std::max(factors, own.numel);
    buffers.basis.emplace_back();
    if (own.of.empty()) continue;
    buffers.basis.back() = {fmt::format("{}.{}", unit.spec.name, kDionBasisKind),
                            Category::kOptimizer, DType::kF32, own.basis_numel};
  }
  const auto workspace = [](const char* name, std::int64_t numel) -> std::optional<BufferSpec> {
    if (numel == 0) return std::nullopt;
    return BufferSpec{name, Category::kWorkspace, DType::kF32, numel, kUpdate};
  };
  buffers.factors = workspace("dion.factors", factors);
  if (plan.mesh.degree(sharding::kTensorAxis) > 1) {
    buffers.part_factors =
        matrix_workspace(buffers.common.matrices, "dion.part_factors", [&](const MatrixPart& part) {
          return dion_rank(options, part) * (part.rows + 2 * part.columns);
        });
  }
  buffers.workspace =
      matrix_workspace(buffers.common.matrices, "dion.workspace", [&](const MatrixPart& part) {
        return dion_workspace_numel(
            {part.whole_rows, part.whole_columns, dion_rank(options, part)});
      });
  return buffers;
}

// The factors of a matrix's part.
struct PartFactors {
  kernels::LowRankShape shape{};
  Tensor p, r, q;
};

double ratio_of(const MatrixPart& matrix) {
  return std::sqrt(static_cast<double>(matrix.whole_rows) /
                   static_cast<double>(matrix.whole_columns));
}

class Dion final : public MatrixOptimizer {
 public:
  Dion(const OptimizerOptions& options, const sharding::Rank& rank,
       const std::vector<sharding::UnitState>& units, const DionBuffers& buffers)
      : MatrixOptimizer(options, rank, units, buffers.common, ratio_of) {
    factors_ = rank.acquire(buffers.factors);
    part_factors_ = rank.acquire(buffers.part_factors);
    workspace_ = rank.acquire(buffers.workspace);
    for (int unit = 0; unit < num_units(); ++unit) {
      of_units_.push_back(factors_of(options, matrices(unit)));
      bases_.push_back(rank.acquire(buffers.basis[static_cast<std::size_t>(unit)]));
      for (std::size_t i = 0; i < matrices(unit).size(); ++i) begin_basis(unit, i);
    }
  }

  std::vector<MomentPiece> moment_pieces() const override {
    std::vector<MomentPiece> pieces = MatrixOptimizer::moment_pieces();
    for (int unit = 0; unit < num_units(); ++unit) {
      for (std::size_t i = 0; i < matrices(unit).size(); ++i) {
        const ParameterSpec& parameter = parameter_of(unit, i);
        pieces.push_back({std::string(kDionBasisKind), state(unit).own_slice(), parameter.index,
                          basis_before(options(), parameter, matrices(unit)[i].number),
                          basis(unit, i)});
      }
    }
    return pieces;
  }

 private:
  const Factors& factors(int unit, std::size_t matrix) const {
    return of_units_[static_cast<std::size_t>(unit)].of[matrix];
  }
  const ParameterSpec& parameter_of(int unit, std::size_t matrix) const {
    return state(unit)
        .spec()
        .parameters[static_cast<std::size_t>(matrices(unit)[matrix].parameter)];
  }
  Tensor basis(int unit, std::size_t matrix) const {
    const Factors& of = factors(unit, matrix);
    return bases_[static_cast<std::size_t>(unit)].tensor().part(of.in_basis, of.q_numel());
  }
  Tensor p_of(const Factors& of) const { return factors_.tensor().part(of.first, of.p_numel()); }
  Tensor r_of(const Factors& of) const {
    return factors_.tensor().part(of.first + of.p_numel(), of.q_numel());
  }
  Tensor both_of(const Factors& of) const { return factors_.tensor().part(of.first, of.numel()); }
  std::size_t index_of(int unit, const OwnedMatrix& matrix) const {
    return static_cast<std::size_t>(&matrix - matrices(unit).data());
  }

  void begin_basis(int unit, std::size_t matrix) {
    fill_first_basis(rank().compute(), options(), parameter_of(unit, matrix).index,
                     matrices(unit)[matrix].number, basis(unit, matrix));
  }

  void update_matrices(Stream& stream, int unit, const UpdateStep& step) override {
    for_each_slice(unit, [&](const Matrices& slice) {
      kernels::dion_momentum(stream, args_of(unit, slice, step));
    });
    gather(stream, unit);
    compute_owned(unit, {.compute =
                             [&](const OwnedMatrix& matrix, const Tensor& whole) {
                               form_factors(stream, unit, index_of(unit, matrix), whole);
                             },
                         .hand_back =
                             [&](const OwnedMatrix& matrix) {
                               parts().broadcast(state(unit).name(),
                                                 both_of(factors(unit, index_of(unit, matrix))),
                                                 matrix.tensor_owner);
                             }});
    broadcast(stream, unit, [&](const OwnedMatrix& matrix) {
      return both_of(factors(unit, index_of(unit, matrix)));
    });
    for (std::size_t i = 0; i < matrices(unit).size(); ++i) use_factors(stream, unit, i);
    for_each_slice(unit, [&](const Matrices& slice) {
      kernels::muon_apply(stream, args_of(unit, slice, step), slice.ratios);
    });
  }

  // The owner's: P and R of a whole M.
  void form_factors(Stream& stream, int unit, std::size_t matrix, const Tensor& whole) {
    const Factors& of = factors(unit, matrix);
    const kernels::LowRankShape shape{of.rows, of.columns, of.rank};
    const Tensor p = p_of(of), workspace = workspace_.tensor();
    dion_rows(stream, shape, basis(unit, matrix), whole, p, workspace);
    kernels::orthonormalise(stream, of.rank, of.rows, p);
    dion_columns(stream, shape, p, whole, r_of(of), workspace);
  }

  // M loses what is used of it, in each slice; the flat buffer receives P Q^T.
  void use_factors(Stream& stream, int unit, std::size_t number) {
    const Factors& of = factors(unit, number);
    const OwnedMatrix& matrix = matrices(unit)[number];
    kernels::next_basis(stream, of.rank, of.columns, unused_share(options()), r_of(of),
                        basis(unit, number));
    const PartFactors part = part_factors(stream, unit, number);
    for_each_slice(unit, [&](const Matrices& slice) {
      const Tensor update = full_slice(unit, slice), m = momentum(unit, slice);
      const std::int64_t begin = slice.slice.slice_index * update.numel;
      const std::int64_t from = std::max(begin, matrix.offset);
      const std::int64_t to = std::min(begin + update.numel, matrix.offset + matrix.numel());
      if (from >= to) return;
      kernels::low_rank_restore(stream, part.shape, {part.p, part.r, part.q}, from - matrix.offset,
                                update.part(from - begin, to - from),
                                m.part(from - begin, to - from));
    });
  }

  // The whole matrix's, or the rows and columns of this tensor rank's part.
  PartFactors part_factors(Stream& stream, int unit, std::size_t number) {
    const Factors& of = factors(unit, number);
    const MatrixPart& matrix = matrices(unit)[number].part;
    const kernels::LowRankShape shape{matrix.rows, matrix.columns, of.rank};
    if (!part_factors_) return {shape, p_of(of), r_of(of), basis(unit, number)};
    std::int64_t taken = 0;
    const auto take = [&](const Tensor& from, std::int64_t width, std::int64_t first,
                          std::int64_t count) {
      const Tensor to = part_factors_.tensor().part(taken, of.rank * count);
      taken += to.numel;
      kernels::take_columns(stream, {of.rank, width, first, count}, from, 1.0f, to);
      return to;
    };
    const std::int64_t row = parts().first_row(matrix), column = parts().first_column(matrix);
    const Tensor p = take(p_of(of), of.rows, row, matrix.rows);
    const Tensor r = take(r_of(of), of.columns, column, matrix.columns);
    return {shape, p, r, take(basis(unit, number), of.columns, column, matrix.columns)};
  }

  std::vector<UnitFactors> of_units_;
  std::vector<Buffer> bases_;  // by unit
  Buffer factors_;             // of one unit at a time
  Buffer part_factors_, workspace_;
};

// Momenta are in the sum over replicas (dion_sum.h), which leaves P Q^T as the gradient.
class DecoupledDion final : public MatrixOptimizer {
 public:
  DecoupledDion(const OptimizerOptions& options, const sharding::Rank& rank,
                const std::vector<sharding::UnitState>& units, const MatrixBuffers& buffers)
      : MatrixOptimizer(options, rank, units, buffers, ratio_of) {}

 private:
  void update_matrices(Stream& stream, int unit, const UpdateStep& step) override {
    for_each_slice(unit, [&](const Matrices& slice) {
      const kernels::MuonUpdate args{
          common_of(slice.slice, step, options().moment_type), {}, slice.slice.gradient, 0.0f};
      kernels::muon_apply(stream, args, slice.ratios);
    });
  }
};

std::int64_t factor_numel(const OptimizerOptions& options, const OwnedMatrix& matrix) {
  return dion_rank(options, matrix.part) * (matrix.part.whole_rows + matrix.part.whole_columns);
}

}  // namespace

std::vector<std::int64_t> dion_basis_shape(const OptimizerOptions& options,
                                           const ParameterSpec& parameter) {
  std::int64_t vectors = 0, columns = 0;
  for (const MatrixPart& matrix : whole_matrices(parameter)) {
    vectors += dion_rank(options, matrix);
    columns = matrix.columns;
  }
  return {vectors, columns};
}

OptimizerDescriptor dion_descriptor() {
  return {.type = OptimizerType::kDion,
          .moment_kinds = [](const OptimizerOptions& options, const UnitSpec& unit,
                             const ParameterSpec& parameter) -> std::vector<std::string> {
            if (!is_by_matrix(options, unit, parameter)) return {"exp_avg", "exp_avg_sq"};
            if (options.dion_decoupled) return {};
            return {"momentum", std::string(kDionBasisKind)};
          },
          .buffers =
              [](const OptimizerOptions& options, const sharding::ShardingPlan& plan, int rank) {
                if (options.dion_decoupled) return rest_buffers(options, plan, rank).list(1);
                return dion_buffers_of(options, plan, rank)
                    .list(plan.mesh.degree(sharding::kTensorAxis));
              },
          .traffic =
              [](const OptimizerOptions& options, const sharding::ShardingPlan& plan, int rank) {
                if (options.dion_decoupled) return sharding::Traffic();
                return matrix_traffic(options, plan, rank,
                                      {.gathered = "dion momenta",
                                       .broadcast = "dion factors",
                                       .numel_to_slices = factor_numel,
                                       .numel_to_tensor_ranks = factor_numel});
              },
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            const sharding::ShardingPlan plan{rank.mesh, sharding::plans_of(units)};
            if (options.dion_decoupled) {
              return std::make_unique<DecoupledDion>(options, rank, units,
                                                     rest_buffers(options, plan, rank.rank));
            }
            return std::make_unique<Dion>(options, rank, units,
                                          dion_buffers_of(options, plan, rank.rank));
          },
          .uneven_numels = second_moment_numels,
          .defaults = {.momentum = 0.95},
          .leaves_some_to_adamw = true};
}

}  // namespace sherd::optim
