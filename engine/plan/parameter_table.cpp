#include "engine/plan/parameter_table.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <vector>

#include "engine/model/adapter.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/model/parameters.h"
#include "engine/plan/groups_text.h"
#include "engine/train/layout/sharding_plan.h"

namespace sherd::engine {
namespace {

using sharding::AxisSet;
using sharding::Mesh;

// In the mesh's order, those of more than one rank.
std::string axes_text(const Mesh& mesh, const AxisSet& axes) {
  std::string text;
  for (const sharding::MeshAxis& axis : mesh.axes()) {
    if (axis.degree == 1 || !axes.contains(axis.name)) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", axis.name);
  }
  return text.empty() ? "-" : text;
}

std::string extents_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) {
    text += fmt::format("{}{}", text.empty() ? "" : " x ", size);
  }
  return text;
}

// "block.12.mlp.up.weight" -> "mlp.up.weight"; "" for parameters outside of blocks.
std::string name_in_block(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  return name.starts_with(kBlock) ? name.substr(name.find('.', kBlock.size()) + 1) : "";
}

// The names in blocks that are frozen in some blocks and trained in others, or in several groups.
std::set<std::string> names_that_differ(const TrainingOptions& options) {
  std::map<std::string, std::set<std::pair<bool, int>>> states_of;
  const model::ModelShape& shape = options.model;
  if (shape.frozen.empty() && options.optimizer.groups.empty()) return {};
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      states_of[name_in_block(parameter.name)].emplace(model::is_trained(shape, parameter.name),
                                                       options.optimizer.group_of(parameter));
    }
  }
  std::set<std::string> names;
  for (const auto& [name, states] : states_of) {
    if (states.size() > 1 && !name.empty()) names.insert(name);
  }
  return names;
}

// "" if the recipe has no groups.
std::string group_text(const optim::OptimizerOptions& optimizer, const ParameterSpec& parameter) {
  if (optimizer.groups.empty()) return "";
  const int group = optimizer.group_of(parameter);
  return fmt::format("{:<7}", group < 0 ? "-" : std::to_string(group + 1));
}

// The first block represents all blocks, except in what differs. "": another row has it.
std::string name_in_all_blocks(const std::string& name, const std::set<std::string>& differ) {
  const std::string in_block = name_in_block(name);
  if (in_block.empty() || differ.contains(in_block)) return name;
  return name.starts_with("block.0.") ? "block.*." + in_block : "";
}

std::string whole_shape_text(const ParameterSpec& parameter) {
  return extents_text(parameter.cut ? parameter.cut->shape : parameter.shape);
}

std::string cut_text(const ParameterSpec& parameter) {
  constexpr const char* kNames[] = {"none", "rows", "columns"};
  return parameter.cut ? kNames[static_cast<std::size_t>(parameter.cut->cut)] : "none";
}

bool counts_all(const ParameterSpec& parameter) {
  for (const HeldBox& held : parameter.cut->held) {
    if (!held.counts) return false;
  }
  return true;
}

// Which tensor ranks count a parameter in norms and save it.
std::string counted_by(const std::vector<sharding::ShardingPlan>& of_rank, std::size_t unit,
                       std::size_t parameter) {
  const auto spec = [&](std::size_t rank) -> const ParameterSpec& {
    return of_rank[rank].units[unit].spec.parameters[parameter];
  };
  if (of_rank.size() == 1) return spec(0).cut ? "each its part" : "-";
  if (spec(0).cut->cut == Cut::kNone) return "tensor rank 0";
  for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
    if (!counts_all(spec(rank))) return "the first holder of each box";
  }
  return "each its part";
}

}  // namespace

std::string parameter_rows(const PlannedRecipe& planned) {
  const TrainingOptions& options = planned.options;
  const Mesh& mesh = planned.mesh;
  std::vector<sharding::MeshAxis> axes = mesh.axes();
  std::erase_if(axes, [](const auto& axis) { return axis.name == sharding::kPipelineAxis; });
  const Mesh one_place(axes, mesh.num_owners());
  // Tensor is the innermost axis: its ranks are the first ones.
  std::vector<sharding::ShardingPlan> of_rank;
  for (int rank = 0; rank < mesh.degree(sharding::kTensorAxis); ++rank) {
    of_rank.push_back(sharding_plan(options, one_place, rank));
  }
  const std::set<std::string> differ = names_that_differ(options);
  const bool both_ends = options.model.tied && mesh.degree(sharding::kPipelineAxis) > 1;
  std::string text = fmt::format("{:<36}{:<16}{}{:<9}{:<26}{:<14}{}\n", "parameter", "shape",
                                 options.optimizer.groups.empty() ? "" : "group  ", "cut",
                                 "gradient summed over", "state over", "counted and saved by");
  const std::vector<sharding::UnitPlan>& units = of_rank[0].units;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const sharding::Placement& placement = units[u].placement;
    AxisSet over_slices = placement.group;
    over_slices.merge(sharding::replica_axes(placement));
    for (std::size_t p = 0; p < units[u].spec.parameters.size(); ++p) {
      const ParameterSpec& parameter = units[u].spec.parameters[p];
      const std::string name = name_in_all_blocks(parameter.name, differ);
      if (name.empty()) continue;
      AxisSet summed = over_slices;
      if (model::is_summed_over_tensor_ranks(options.model, parameter.name)) {
        summed.insert(std::string(sharding::kTensorAxis));
      }
      const std::string over = axes_text(mesh, summed);
      const bool at_ends = both_ends && u == 0;
      text += fmt::format("{:<36}{:<16}{}{:<9}{:<26}{:<14}{}\n", name, whole_shape_text(parameter),
                          group_text(options.optimizer, parameter), cut_text(parameter),
                          at_ends ? (over == "-" ? "both ends" : over + ", both ends") : over,
                          units[u].has_owners() ? std::string(sharding::kOwnerAxis)
                                                : axes_text(mesh, placement.optimizer),
                          counted_by(of_rank, u, p));
    }
    if (options.model.frozen.empty()) continue;  // of an adapter's base nothing is listed
    for (const ParameterSpec& parameter : units[u].frozen) {
      const std::string name = name_in_all_blocks(parameter.name, differ);
      if (name.empty()) continue;
      text += fmt::format("{:<36}{:<16}{}{:<9}frozen\n", name, whole_shape_text(parameter),
                          group_text(options.optimizer, parameter), cut_text(parameter));
    }
  }
  if (const std::string groups = groups_text(options); !groups.empty())
    text += '\n' + groups + '\n';
  return text;
}

}  // namespace sherd::engine
