#include "engine/plan/paper_convention.h"

#include <fmt/format.h>

#include <set>

#include "engine/model/parameters.h"
#include "engine/plan/memory_plan.h"

namespace sherd::engine {

std::int64_t paper_state_bytes(const TrainingOptions& options, int stage, int world_size) {
  TrainingOptions paper = options;
  paper.placement = sharding::placement_of(stage);
  paper.precision = {DType::kBF16, DType::kBF16, DType::kBF16};
  paper.optimizer.type = optim::OptimizerType::kAdamW;
  paper.optimizer.moment_type = {};
  const sharding::ShardingPlan plan = sharding_plan(paper, sharding::Mesh::sharded(world_size), 0);
  std::int64_t bytes = 0;
  for (const sharding::UnitPlan& unit : plan.units) {
    const sharding::UnitBuffers at_rest = sharding::unit_buffers(unit);
    if (at_rest.frozen) bytes += at_rest.frozen->bytes();
    if (at_rest.quantised) bytes += at_rest.quantised->bytes() + at_rest.ranges->bytes();
    if (!unit.trains()) continue;
    bytes += at_rest.fp32_parameters.value().bytes() + at_rest.gradients.value().bytes();
    bytes += at_rest.resident
                 ? at_rest.resident->bytes()
                 : unit.layout.slice_numel() * static_cast<std::int64_t>(size_of(DType::kBF16));
  }
  for (const BufferSpec& buffer :
       optim::descriptor_of(paper.optimizer.type).buffers(paper.optimizer, plan, 0)) {
    if (buffer.category == Category::kOptimizer) bytes += buffer.bytes();
  }
  return bytes;
}

std::string paper_table(const PlannedRecipe& planned) {
  const Recipe& recipe = planned.recipe;
  const TrainingOptions& options = planned.options;
  std::string text = fmt::format(
      "{}: {:.4g} B parameters; states alone as the ZeRO paper counts them: 16-bit gradients, a\n"
      "16-bit copy in addition to the FP32 slice at stage 3, AdamW; GB (1e9 bytes) per rank\n"
      "{:>8}{:>14}{:>14}{:>14}\n",
      recipe.run.name, static_cast<double>(model::num_parameters(options.model)) / 1e9, "ranks",
      "stage 1", "stage 2", "stage 3");
  std::set<int> worlds = {1, 4, 16, 64, 256, 1024, static_cast<int>(recipe.world_size())};
  for (const int world_size : worlds) {
    text += fmt::format("{:>8}", world_size);
    for (int stage = 1; stage <= 3; ++stage) {
      text += fmt::format("{:>14.2f}",
                          static_cast<double>(paper_state_bytes(options, stage, world_size)) / 1e9);
    }
    text += "\n";
  }
  return text;
}

}  // namespace sherd::engine
