#include "optim/matrices/matrix_plan.h"

#include <algorithm>
#include <numeric>

#include "optim/slices.h"

namespace sherd::optim {
namespace {

// AdamW's second moment is kept only for AdamW's parameters, piece after piece of the updated
// slices. Pieces begin at multiples of 64 elements, so all of a parameter's pieces together take as
// much as the parameter.
std::int64_t second_moment_numel(const OptimizerOptions& options, const sharding::UnitPlan& unit,
                                 int slice) {
  std::int64_t numel = 0;
  if (!unit.placement.optimizer_sharded()) {
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      if (!is_by_matrix(options, unit.spec, parameter)) numel += padded(parameter.numel());
    }
    return numel;
  }
  for (const sharding::Piece& piece : unit.layout.pieces(slice)) {
    if (!is_by_matrix(options, unit.spec, unit.spec.parameters[piece.parameter]))
      numel += padded(piece.count);
  }
  return numel;
}

}  // namespace

bool is_by_matrix(const OptimizerOptions& options, const UnitSpec& unit,
                  const ParameterSpec& parameter) {
  const int group = options.group_of(parameter);
  if (group >= 0 && options.groups[static_cast<std::size_t>(group)].adamw) return false;
  // Neither a router nor a vector that is a matrix of one row; of a tensor rank's part, its whole.
  const std::vector<std::int64_t>& shape = parameter.cut ? parameter.cut->shape : parameter.shape;
  return is_of_layers(unit.unit_class) && shape.size() == 2 && shape[0] > 1 &&
         !parameter.name.ends_with(".router.weight");
}

std::vector<OwnedMatrix> matrices_of(const OptimizerOptions& options,
                                     const sharding::UnitPlan& unit) {
  std::vector<OwnedMatrix> matrices;
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (!is_by_matrix(options, unit.spec, parameter)) continue;
    std::int64_t offset = unit.layout.offset(static_cast<int>(i));
    int number = first_matrix(parameter);
    for (const MatrixPart& part : matrix_parts(parameter)) {
      matrices.push_back({offset, part, static_cast<int>(i), number++});
      offset += part.numel();
    }
  }
  return matrices;
}

void choose_owners(std::vector<OwnedMatrix>& matrices, int num_slices, int tensor_degree) {
  const int group_size = num_slices * tensor_degree;
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return matrices[a].cost() > matrices[b].cost();
  });
  // No more ranks than matrices get one: while a rank has none, no other gets its second.
  const std::size_t num_owners = std::min(matrices.size(), static_cast<std::size_t>(group_size));
  std::vector<double> load(num_owners, 0.0);
  for (const std::size_t index : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += matrices[index].cost();
    const auto owner = static_cast<int>(least - load.begin());
    matrices[index].owner = owner / tensor_degree;
    matrices[index].tensor_owner = owner % tensor_degree;
  }
}

std::int64_t padded(std::int64_t numel) {
  return (numel + sharding::kAlignment - 1) / sharding::kAlignment * sharding::kAlignment;
}

// The same for all slices at once.
std::vector<std::int64_t> second_moment_numels(const OptimizerOptions& options,
                                               const sharding::UnitPlan& unit) {
  const auto num_slices = static_cast<std::size_t>(unit.layout.num_slices());
  if (!unit.placement.optimizer_sharded()) {
    return std::vector<std::int64_t>(num_slices, second_moment_numel(options, unit, 0));
  }
  const std::int64_t slice = unit.layout.slice_numel();
  std::vector<std::int64_t> numels(num_slices, 0);
  for (std::size_t i = 0; i < unit.spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.spec.parameters[i];
    if (is_by_matrix(options, unit.spec, parameter)) continue;
    const std::int64_t begin = unit.layout.offset(static_cast<int>(i));
    const std::int64_t end = begin + parameter.numel();
    for (std::int64_t rank = begin / slice; rank * slice < end; ++rank) {
      numels[rank] += padded(std::min(end, (rank + 1) * slice) - std::max(begin, rank * slice));
    }
  }
  return numels;
}

MatrixBuffers rest_buffers(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                           int rank) {
  MatrixBuffers buffers;
  for (const sharding::UnitPlan& unit : plan.units) {
    const std::int64_t rest =
        second_moment_numel(options, unit, sharding::slice_of(plan.mesh, rank, unit.placement));
    const auto moment = [&](const char* kind) -> std::optional<BufferSpec> {
      if (rest == 0) return std::nullopt;
      return BufferSpec{unit.spec.name + kind, Category::kOptimizer, options.moment_type.dtype,
                        rest};
    };
    buffers.momentum.emplace_back();
    buffers.exp_avg.push_back(moment(".exp_avg"));
    buffers.exp_avg_sq.push_back(moment(".exp_avg_sq"));
  }
  return buffers;
}

MatrixBuffers matrix_buffers(const OptimizerOptions& options, const sharding::ShardingPlan& plan,
                             int rank, const std::string& optimizer) {
  MatrixBuffers buffers = rest_buffers(options, plan, rank);
  std::int64_t largest_unit = 0;
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const sharding::UnitPlan& unit = plan.units[i];
    buffers.exp_avg[i].reset();  // it is in the first moment of all
    if (unit.trains()) {
      buffers.momentum[i] = moment_buffer(unit, "momentum", options.moment_type);
    }
    for (const OwnedMatrix& matrix : matrices_of(options, unit)) {
      largest_unit = std::max(largest_unit, unit.layout.numel());
      buffers.matrices.push_back(matrix.part);
    }
  }
  if (largest_unit > 0) {
    buffers.full = {optimizer + ".update", Category::kWorkspace, DType::kF32, largest_unit,
                    kUpdate};
  }
  return buffers;
}

std::vector<BufferSpec> MatrixBuffers::list(int tensor_degree) const {
  std::vector<BufferSpec> all;
  for (const auto* by_unit : {&momentum, &exp_avg, &exp_avg_sq}) {
    for (const auto& moments : *by_unit) {
      if (moments) all.push_back(*moments);
    }
  }
  if (full) all.push_back(*full);
  for (BufferSpec& buffer : MatrixParts::buffers(matrices, tensor_degree)) {
    all.push_back(std::move(buffer));
  }
  return all;
}

sharding::Traffic matrix_traffic(const OptimizerOptions& options,
                                 const sharding::ShardingPlan& plan, int rank,
                                 const MatrixTraffic& what) {
  sharding::Traffic traffic;
  const int degree = plan.mesh.degree(sharding::kTensorAxis);
  const int tensor_rank = plan.mesh.coordinate(rank, sharding::kTensorAxis);
  for (const sharding::UnitPlan& unit : plan.units) {
    std::vector<OwnedMatrix> matrices = matrices_of(options, unit);
    if (matrices.empty()) continue;
    SHERD_CHECK(!unit.divides_parts(), "matrices of replicas that divide the optimizer's state");
    const int group_size = unit.layout.num_slices();
    const int own = sharding::slice_of(plan.mesh, rank, unit.placement);
    choose_owners(matrices, group_size, degree);
    if (unit.placement.optimizer_sharded()) {
      traffic.add(what.gathered, sharding::Collective::kAllGather, DType::kF32, unit.layout.numel(),
                  unit.group());
    }
    for (const OwnedMatrix& matrix : matrices) {
      if (matrix.owner == own && degree > 1) {
        MatrixParts::add_traffic(matrix.part, what.numel_to_tensor_ranks(options, matrix), degree,
                                 matrix.tensor_owner == tensor_rank, traffic);
      }
      if (group_size == 1) continue;
      if (matrix.owner == own) {
        traffic.add(what.broadcast, sharding::Collective::kBroadcast, DType::kF32,
                    what.numel_to_slices(options, matrix), unit.group());
      } else {
        traffic.add_silent(what.broadcast, sharding::Collective::kBroadcast, DType::kF32,
                           unit.group());
      }
    }
  }
  return traffic;
}

}  // namespace sherd::optim
