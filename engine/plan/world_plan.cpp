#include "engine/plan/world_plan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"
#include "engine/launch/launch.h"

namespace sherd::engine {
namespace {

/// What of a rank's plan isn't the same on all ranks: its place in the pipeline and among tensor
/// ranks, whether it owns others' state, and what the optimizer holds unevenly. That is counted for
/// the units of a model with one layer of each kind, or of all layers if some are updated
/// differently.
struct Peculiarity {
  int place = 0, tensor_rank = 0;
  bool owns = false;
  std::vector<std::int64_t> uneven{};
  auto operator<=>(const Peculiarity&) const = default;
};

sharding::Mesh without_pipeline(const sharding::Mesh& mesh) {
  std::vector<sharding::MeshAxis> axes = mesh.axes();
  std::erase_if(axes, [](const auto& axis) { return axis.name == sharding::kPipelineAxis; });
  return sharding::Mesh(axes, mesh.num_owners());
}

// What tells each rank from others. A search stops at the first rank that doesn't fit, so each is
// worked out when it is asked for.
class Peculiarities {
 public:
  Peculiarities(const TrainingOptions& options, const sharding::Mesh& mesh) : mesh_(mesh) {
    const auto uneven_numels = optim::descriptor_of(options.optimizer.type).uneven_numels;
    if (!uneven_numels) return;
    TrainingOptions one_of_each = options;
    const auto leaves_matrices = [](const optim::ParameterGroup& group) { return group.adamw; };
    // A block of multi-token prediction is of the last layer's kind, which is another one's there.
    if (options.model.mtp_layers == 0 && options.model.frozen.empty() &&
        std::ranges::none_of(options.optimizer.groups, leaves_matrices)) {
      one_of_each.model.num_layers = std::ssize(options.model.layers_of_each_kind());
    }
    // Tensor is the innermost axis: its ranks are the first ones.
    for (int tensor_rank = 0; tensor_rank < mesh.degree(sharding::kTensorAxis); ++tensor_rank) {
      const auto plan = sharding_plan(one_of_each, without_pipeline(mesh),
                                      has_owners() ? mesh.num_workers() : tensor_rank);
      units_.emplace_back();
      for (const auto& unit : plan.units) {
        units_.back().push_back({unit.placement, uneven_numels(options.optimizer, unit)});
      }
    }
  }

  Peculiarity of(int rank) const {
    Peculiarity row{.place = mesh_.coordinate(rank, sharding::kPipelineAxis),
                    .tensor_rank = mesh_.coordinate(rank, sharding::kTensorAxis),
                    .owns = mesh_.is_owner(rank)};
    if (units_.empty() || row.owns != has_owners()) return row;
    for (const Unit& unit : units_[static_cast<std::size_t>(row.tensor_rank)]) {
      const int slice = sharding::slice_of(mesh_, rank, unit.placement);
      row.uneven.push_back(unit.numels[static_cast<std::size_t>(slice)]);
    }
    return row;
  }

 private:
  struct Unit {
    sharding::Placement placement;
    std::vector<std::int64_t> numels;  // of each slice
  };

  bool has_owners() const { return mesh_.num_owners() > 0; }

  const sharding::Mesh& mesh_;
  std::vector<std::vector<Unit>> units_;  // of each tensor rank
};

}  // namespace

WorldPlan::WorldPlan(const TrainingOptions& options, MemoryRequest request, PlanDetail detail,
                     const GoesOn& goes_on) {
  const int world_size = request.mesh.world_size();
  num_workers_ = request.mesh.num_workers();
  const bool uneven = optim::descriptor_of(options.optimizer.type).uneven_numels &&
                      options.placement.optimizer_sharded() && world_size > 1;
  const bool ranks_differ = uneven || request.mesh.num_owners() > 0 ||
                            request.mesh.degree(sharding::kPipelineAxis) > 1 ||
                            request.mesh.degree(sharding::kTensorAxis) > 1;
  std::optional<Peculiarities> peculiarities;
  if (ranks_differ) peculiarities.emplace(options, request.mesh);
  std::map<Peculiarity, std::size_t> known;
  Peculiarity row;
  kind_of_rank_.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    // Most ranks are like the one before.
    Peculiarity own = peculiarities ? peculiarities->of(rank) : Peculiarity{};
    if (rank == 0 || own != row) {
      row = std::move(own);
      const auto [at, is_new] = known.emplace(row, equal_ranks_.size());
      request.rank = rank;
      if (is_new) {
        std::vector<BufferSpec> buffers = run_buffers(options, request);
        MemoryPlan host = host_plan(buffers, request);
        MemoryPlan offloaded =
            offload_plan(options.offloads() ? buffers : std::vector<BufferSpec>());
        equal_ranks_.push_back({rank, 0, device_plan(std::move(buffers), request), std::move(host),
                                std::move(offloaded)});
        if (detail == PlanDetail::kSums) equal_ranks_.back().plan.keep_sums_only();
      }
      kind_of_rank_.push_back(at->second);
    } else {
      kind_of_rank_.push_back(kind_of_rank_.back());
    }
    ++equal_ranks_[kind_of_rank_.back()].num_ranks;
    const std::int64_t bytes = of(rank).arena_bytes();
    if (bytes > worst().arena_bytes()) worst_rank_ = rank;
    int& worst_alike = request.mesh.is_owner(rank) ? worst_server_ : worst_worker_;
    if (worst_alike < 0 || bytes > of(worst_alike).arena_bytes()) worst_alike = rank;
    if (__builtin_add_overflow(all_arenas_bytes_, bytes, &all_arenas_bytes_)) {
      throw UsageError("{} ranks together need more bytes than 64 bits can count.", world_size);
    }
    if (goes_on && !goes_on(*this)) return;
  }
}

namespace {

MemoryRequest request_of(const PlannedRecipe& planned) {
  const Recipe& recipe = planned.recipe;
  const DeviceTraits& device = planned.device;
  return {.mesh = planned.mesh,
          .num_threads =
              device.threads_per_rank > 0 ? device.threads_per_rank : compute_threads(recipe),
          .saves = recipe.checkpoint.saves(),
          .device = device.kind,
          .deterministic = recipe.run.deterministic,
          .separate_memory = device.separate_memory,
          .staging_bytes = device.staging_bytes};
}

}  // namespace

WorldPlan plan_world(const PlannedRecipe& planned, PlanDetail detail,
                     const WorldPlan::GoesOn& goes_on) {
  return {planned.options, request_of(planned), detail, goes_on};
}

MemoryPlan plan_first_rank(const PlannedRecipe& planned) {
  return plan_memory(planned.options, request_of(planned));
}

}  // namespace sherd::engine
