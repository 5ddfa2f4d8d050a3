#include "optim/matrices/muon.h"

#include <cmath>

#include "kernels/orthogonalise.h"
#include "optim/matrices/matrix_optimizer.h"

namespace sherd::optim {
namespace {

std::optional<BufferSpec> workspace_buffer(const OptimizerOptions& options,
                                           const std::vector<MatrixPart>& matrices) {
  return matrix_workspace(matrices, "muon.workspace", [&](const MatrixPart& matrix) {
    return kernels::orthogonalise_workspace_numel(matrix.whole_rows, matrix.whole_columns,
                                                  options.muon_dtype);
  });
}

double ratio_of(const OptimizerOptions& options, const MatrixPart& matrix) {
  const auto rows = static_cast<double>(matrix.whole_rows);
  const auto columns = static_cast<double>(matrix.whole_columns);
  return options.muon_scale == MuonScale::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                    : 0.2 * std::sqrt(std::max(rows, columns));
}

class Muon final : public MatrixOptimizer {
 public:
  Muon(const OptimizerOptions& options, const sharding::Rank& rank,
       const std::vector<sharding::UnitState>& units, const MatrixBuffers& buffers)
      : MatrixOptimizer(options, rank, units, buffers,
                        [&](const MatrixPart& matrix) { return ratio_of(options, matrix); }) {
    workspace_ = rank.acquire(workspace_buffer(options, buffers.matrices));
  }

 private:
  void update_matrices(Stream& stream, int unit, const UpdateStep& step) override {
    for_each_slice(unit, [&](const Matrices& matrices) {
      kernels::muon_momentum(stream, args_of(unit, matrices, step));
    });
    gather(stream, unit);
    orthogonalise(stream, unit);
    broadcast(stream, unit, [&](const OwnedMatrix& matrix) {
      return full(unit).part(matrix.offset, matrix.numel());
    });
    for_each_slice(unit, [&](const Matrices& matrices) {
      kernels::muon_apply(stream, args_of(unit, matrices, step), matrices.ratios);
    });
  }

  void orthogonalise(Stream& stream, int unit) {
    const auto polynomials = options().muon_coefficients == MuonCoefficients::kPolarExpress
                                 ? kernels::Polynomials::kPolarExpress
                                 : kernels::Polynomials::kJordan;
    compute_owned(unit, {.compute =
                             [&](const OwnedMatrix& matrix, const Tensor& whole) {
                               kernels::orthogonalise(
                                   stream,
                                   {whole, matrix.part.whole_rows, matrix.part.whole_columns,
                                    options().muon_dtype, workspace_.tensor(), polynomials});
                             },
                         .hand_back =
                             [&](const OwnedMatrix& matrix) {
                               parts().hand_back(state(unit).name(), matrix.part,
                                                 full(unit).part(matrix.offset, matrix.numel()),
                                                 matrix.tensor_owner);
                             }});
  }

  Buffer workspace_;
};

std::vector<BufferSpec> muon_buffers(const OptimizerOptions& options,
                                     const sharding::ShardingPlan& plan, int rank) {
  const MatrixBuffers buffers = matrix_buffers(options, plan, rank, "muon");
  std::vector<BufferSpec> all = buffers.list(plan.mesh.degree(sharding::kTensorAxis));
  if (const auto workspace = workspace_buffer(options, buffers.matrices)) all.push_back(*workspace);
  return all;
}

sharding::Traffic muon_traffic(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                               int rank) {
  return matrix_traffic(
      options, plan, rank,
      {.gathered = "muon updates",
       .broadcast = "muon matrices",
       .numel_to_slices = [](const OptimizerOptions&,
                             const OwnedMatrix& matrix) { return matrix.numel(); },
       .numel_to_tensor_ranks =
           [](const OptimizerOptions&, const OwnedMatrix& matrix) {
             return matrix.part.whole_numel();
           }});
}

}  // namespace

OptimizerDescriptor muon_descriptor() {
  return {.type = OptimizerType::kMuon,
          .moment_kinds = [](const OptimizerOptions& options, const UnitSpec& unit,
                             const ParameterSpec& parameter) -> std::vector<std::string> {
            if (is_by_matrix(options, unit, parameter)) return {"momentum"};
            return {"exp_avg", "exp_avg_sq"};
          },
          .buffers = muon_buffers,
          .traffic = muon_traffic,
          .make = [](const OptimizerOptions& options, const sharding::Rank& rank,
                     const std::vector<sharding::UnitState>& units) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Muon>(
                options, rank, units,
                matrix_buffers(options, {rank.mesh, sharding::plans_of(units)}, rank.rank, "muon"));
          },
          .uneven_numels = second_moment_numels,
          .defaults = {.momentum = 0.95},
          .leaves_some_to_adamw = true};
}

}  // namespace sherd::optim
