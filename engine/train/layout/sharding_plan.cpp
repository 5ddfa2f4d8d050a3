#include "engine/train/layout/sharding_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "engine/model/adapter.h"
#include "engine/model/cut/expert_cut.h"
#include "engine/model/cut/sequence_cut.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/model/parameters.h"
#include "engine/model/sites.h"
#include "engine/train/layout/pipeline_plan.h"
#include "optim/eight_bits.h"
#include "optim/elementwise.h"
#include "sharding/zero/wire_layout.h"

namespace sherd::engine {
namespace {

// Both ends of a pipeline use a tied matrix.
std::optional<sharding::UnitPlan::Tie> tie_of(const RankPipeline& pipeline,
                                              const sharding::Mesh& mesh, int rank) {
  if (!pipeline.plan.ends_differ()) return std::nullopt;
  const std::vector<int> ranks = mesh.group(rank, {std::string(sharding::kPipelineAxis)});
  const schedule::ChunkLayout& layout = pipeline.plan.layout();
  const int first = ranks[static_cast<std::size_t>(layout.rank_of(0))];
  return sharding::UnitPlan::Tie{
      first, ranks[static_cast<std::size_t>(layout.rank_of(layout.last_chunk()))], rank == first};
}

// In a pipeline whose both ends are here; and with canonical sums wherever they are, as if they
// were on two ranks.
bool sums_ends_apart(const RankPipeline& pipeline, const model::ModelShape& model) {
  if (pipeline.plan.ends_differ() || !pipeline.has_embedding()) return false;
  return !pipeline.whole() || model.part.has_canonical_sums();
}

// What the rank holds of units that it uses.
std::vector<UnitSpec> rank_units(const TrainingOptions& options, const sharding::Mesh& mesh,
                                 int rank, const std::vector<UnitId>& ids) {
  const model::ModelShape own = rank_model(options, mesh, rank);
  std::vector<UnitSpec> units = model::parameter_table(own, ids);
  for (UnitSpec& unit : units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (!own.expert.is_cut() || !model::is_of_experts(parameter.name)) continue;
      parameter.cut = model::expert_cut(own.expert, parameter);
    }
  }
  const int degree = mesh.degree(sharding::kTensorAxis);
  if (degree == 1) return units;
  const model::ModelShape of_expert_rank =
      model::expert_part(options.model, own.expert.degree, own.expert.rank);
  auto cuts =
      model::tensor_cut(of_expert_rank, degree, mesh.coordinate(rank, sharding::kTensorAxis), ids);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t p = 0; p < units[u].parameters.size(); ++p) {
      ParameterSpec& parameter = units[u].parameters[p];
      parameter.cut = std::move(cuts[u][p]);
      if (!own.expert.is_cut() || !model::is_of_experts(parameter.name)) continue;
      parameter.cut = model::expert_cut(own.expert, std::move(*parameter.cut));
    }
  }
  return units;
}

// Which of the unit's gradients one kernel forms alone: of blocks' matrices with their biases, and
// of an untied head and token embedding. Tensor ranks add up some of theirs after the matmul.
std::vector<bool> added_by_the_backward(const TrainingOptions& options, const sharding::Mesh& mesh,
                                        const sharding::UnitPlan& unit) {
  if (!options.adds_in_matmuls || mesh.degree(sharding::kTensorAxis) > 1 || unit.has_frozen() ||
      unit.has_quantised() || options.model.part.has_canonical_sums()) {
    return {};
  }
  std::vector<std::string> endings;
  std::vector<model::Site> sites = model::largest_sites(options.model);
  if (options.model.mtp_layers > 0) {
    std::ranges::move(model::block_sites(options.model, options.model.num_layers),
                      std::back_inserter(sites));
  }
  for (const model::Site& site : sites) {
    if (site.columns == 0) continue;
    endings.insert(endings.end(), {"." + site.name + ".weight", "." + site.name + ".bias"});
  }
  std::vector<bool> added;
  for (const ParameterSpec& parameter : unit.spec.parameters) {
    const bool of_block = parameter.name.starts_with("block.") &&
                          std::ranges::any_of(endings, [&](const std::string& ending) {
                            return parameter.name.ends_with(ending);
                          });
    const bool of_tokens = parameter.name == "embedding.token.weight" && !options.model.tied;
    added.push_back(of_block || of_tokens || parameter.name == "head.weight");
  }
  if (std::ranges::none_of(added, std::identity())) added.clear();
  return added;
}

// A block must mean the same on any number of ranks.
void check_blocks(const UnitSpec& unit, const sharding::Precision& precision) {
  const std::pair<const char*, kernels::BlockFormat> keys[] = {
      {"reduce_dtype", precision.reduce_blocks},
      {"replica_reduce_dtype", precision.replica_blocks},
      {"gather_dtype", precision.gather_blocks}};
  const auto* const key = std::ranges::find_if(
      keys, [](const auto& each) { return each.second != kernels::BlockFormat::kF32; });
  if (key == std::end(keys)) return;
  const ParameterSpec* parameter = sharding::cuts_blocks(unit);
  if (parameter == nullptr) return;
  const Box& box = parameter->cut->held.front().box;
  const bool by_columns = box.num_columns < parameter->cut->columns();
  throw UsageError(
      "mixed_precision.{} sends blocks of {} elements, and {} {} of {} on a rank are no multiple "
      "of that. Use "
      "sizes that are multiples of {} on each rank, or another type.",
      key->first, kernels::kCodecBlock, by_columns ? box.num_columns : box.numel(),
      by_columns ? "columns" : "elements", parameter->name, kernels::kCodecBlock);
}

// Blocks of FP32 parameters that are on disk; 0: they are in memory. The optimizer alone uses those
// next to a rounded copy. At stage 3 they are what ranks gather. Parts of layers that are computed
// in f32 are small, and others than the optimizer change them.
std::int64_t disk_block_of(const TrainingOptions& options, const sharding::UnitPlan& unit,
                           const UnitId& id) {
  const sharding::OffloadOptions& offload = options.optimizer.offload;
  if (!offload.master && !offload.parameters) return 0;
  if (id.part > 0 && options.model.layer_parts[static_cast<std::size_t>(id.part) - 1].in_f32) {
    return 0;
  }
  const bool is_gathered = unit.placement.parameters_sharded() && !unit.divides_parts();
  const bool on_disk =
      is_gathered ? offload.parameters : offload.master && unit.precision.parameters != DType::kF32;
  return on_disk ? optim::offload_block(options.optimizer) : 0;
}

}  // namespace

model::ModelShape rank_model(const TrainingOptions& options, const sharding::Mesh& mesh, int rank) {
  const model::ModelShape of_tensor_rank =
      model::tensor_part(options.model, mesh.degree(sharding::kTensorAxis),
                         mesh.coordinate(rank, sharding::kTensorAxis));
  const model::ModelShape of_context_rank =
      model::context_part(of_tensor_rank, mesh.degree(sharding::kContextAxis),
                          mesh.coordinate(rank, sharding::kContextAxis));
  return model::expert_part(of_context_rank, mesh.degree(sharding::kExpertAxis),
                            mesh.coordinate(rank, sharding::kExpertAxis));
}

bool rests_in_four_bits(const TrainingOptions& options, std::string_view name,
                        const std::vector<std::int64_t>& shape) {
  return options.nf4_base && !model::is_trained(options.model, name) &&
         name.starts_with("block.") && shape.size() == 2 && !name.ends_with(".moe.router.weight");
}

std::vector<UnitId> trained_units(const model::ModelShape& shape) {
  std::vector<UnitId> ids;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    const bool trains = std::ranges::any_of(unit.parameters, [&](const ParameterSpec& parameter) {
      return model::is_trained(shape, parameter.name);
    });
    if (trains) ids.push_back(unit.id);
  }
  return ids;
}

std::vector<int> fragments_of(const TrainingOptions& options,
                              const std::vector<sharding::UnitPlan>& units) {
  std::vector<int> fragments(units.size(), -1);
  if (!options.local_updates.active()) return fragments;
  const std::vector<UnitId> trained = trained_units(options.model);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto found = std::ranges::find(trained, units[i].spec.id);
    if (found == trained.end()) continue;
    fragments[i] = options.local_updates.fragment_of(static_cast<int>(found - trained.begin()),
                                                     static_cast<int>(trained.size()));
  }
  return fragments;
}

sharding::ShardingPlan sharding_plan(const TrainingOptions& options, const sharding::Mesh& mesh,
                                     int rank) {
  sharding::ShardingPlan plan{mesh, {}};
  const RankPipeline pipeline = rank_pipeline(options, mesh, rank);
  for (UnitSpec& spec : rank_units(options, mesh, rank, units_of(pipeline, options.model))) {
    const UnitId id = spec.id;
    std::vector<ParameterSpec> frozen, quantised;
    std::erase_if(spec.parameters, [&](ParameterSpec& parameter) {
      if (model::is_trained(options.model, parameter.name)) return false;
      (rests_in_four_bits(options, parameter.name, parameter.shape) ? quantised : frozen)
          .push_back(parameter);
      return true;
    });
    if (options.optimizer.moment_type.in_8_bits) optim::check_blocks(spec);
    PartSharding how = options.sharding_of(id);
    how.placement = sharding::placement_of_rank(how.placement, mesh, rank);
    if (how.placement.role == sharding::Role::kOwner) {  // workers keep them
      frozen.clear();
      quantised.clear();
    }
    check_blocks(spec, how.precision);
    plan.units.emplace_back(std::move(spec), how.placement, how.precision, mesh, std::move(frozen),
                            std::move(quantised));
    if (options.model.part.has_canonical_sums()) {
      plan.units.back().tree_of_ranks = mesh.degree(sharding::kContextAxis);
    }
    plan.units.back().compressed_sum = options.compression != nullptr;
    plan.units.back().fp32_disk_block = disk_block_of(options, plan.units.back(), id);
    plan.units.back().may_add = added_by_the_backward(options, mesh, plan.units.back());
    if (id.role == UnitRole::kEmbedding && options.model.tied) {
      plan.units.back().tie = tie_of(pipeline, mesh, rank);
      plan.units.back().ends_apart =
          plan.units.back().trains() && sums_ends_apart(pipeline, options.model);
    }
  }
  return plan;
}

}  // namespace sherd::engine
