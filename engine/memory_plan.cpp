#include "engine/memory_plan.h"

#include "engine/checkpointing.h"
#include "engine/evaluation.h"
#include "engine/model/activations.h"
#include "engine/token_feed.h"
#include "engine/training_step.h"
#include "optim/muon.h"
#include "sharding/mirrored_buffer.h"

namespace sherd::engine {
namespace {

void append(std::vector<BufferSpec>& to, std::vector<BufferSpec> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::vector<BufferSpec> model_buffers(const TrainingOptions& options,
                                      const std::vector<sharding::UnitPlan>& units,
                                      const MemoryRequest& request) {
  std::vector<BufferSpec> buffers;
  for (const sharding::UnitPlan& unit : units) {
    sharding::UnitBuffers at_rest = sharding::unit_buffers(unit);
    if (at_rest.resident) buffers.push_back(std::move(*at_rest.resident));
    if (at_rest.master) buffers.push_back(std::move(*at_rest.master));
    if (at_rest.gradients) buffers.push_back(std::move(*at_rest.gradients));
  }
  for (sharding::GatherSlot& slot : sharding::gather_slots(units, options.gather)) {
    buffers.push_back(std::move(slot.buffer));
  }
  sharding::ReductionBuffers reduction =
      sharding::reduction_buffers(units, options.num_micro_steps);
  for (auto& slot : reduction.slots) buffers.push_back(std::move(slot.buffer));
  if (reduction.staging) buffers.push_back(std::move(*reduction.staging));
  buffers.push_back(loss_sum_buffer());
  const kernels::ComputeDevice device{.kind = request.device,
                                      .num_threads = request.num_threads,
                                      .deterministic = request.deterministic};
  model::Activations(options.model, device, [&](const BufferSpec& buffer) {
    buffers.push_back(buffer);
    return Buffer();
  });
  return buffers;
}

}  // namespace

std::vector<sharding::UnitPlan> plan_units(const TrainingOptions& options, int world_size) {
  std::vector<sharding::UnitPlan> units;
  for (UnitSpec& spec : model::parameter_table(options.model)) {
    units.emplace_back(std::move(spec), options.placement, options.precision, world_size);
  }
  return units;
}

std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const MemoryRequest& request) {
  CHECK(request.num_threads >= 1, "a rank of {} threads", request.num_threads);
  const auto units = plan_units(options, request.world_size);
  std::vector<BufferSpec> buffers = model_buffers(options, units, request);
  append(buffers, training_step_buffers(options, units, request.rank));
  return buffers;
}

namespace {

std::vector<BufferSpec> run_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  std::vector<BufferSpec> buffers = training_buffers(options, request);
  append(buffers, evaluation_buffers(options, request.world_size));
  append(buffers, batch_buffers(options));
  append(buffers, checkpoint_buffers(options, request.saves,
                                     plan_units(options, request.world_size), request.rank));
  return buffers;
}

std::vector<BufferSpec> use_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  CHECK(!options.placement.has_gradients, "a model that is only used has no gradients");
  std::vector<BufferSpec> buffers =
      model_buffers(options, plan_units(options, request.world_size), request);
  append(buffers, evaluation_buffers(options, request.world_size));
  buffers.push_back(checkpoint_reading_buffer());
  return buffers;
}

// What Rank::acquire_on_host takes.
bool on_host_alone(const BufferSpec& buffer) {
  return buffer.category == Category::kCheckpoint;
}

}  // namespace

MemoryPlan device_plan(std::vector<BufferSpec> buffers, const MemoryRequest& request) {
  if (request.separate_memory) std::erase_if(buffers, on_host_alone);
  return MemoryPlan(std::move(buffers));
}

MemoryPlan host_plan(const std::vector<BufferSpec>& buffers, const MemoryRequest& request) {
  std::vector<BufferSpec> host;
  if (!request.separate_memory) return MemoryPlan(std::move(host));
  for (const BufferSpec& buffer : buffers) {
    if (on_host_alone(buffer)) host.push_back(buffer);
    if (buffer.mirrored) host.push_back(sharding::twin_of(buffer));
  }
  return MemoryPlan(std::move(host));
}

MemoryPlan plan_memory(const TrainingOptions& options, const MemoryRequest& request) {
  return device_plan(run_buffers(options, request), request);
}
MemoryPlan plan_host_memory(const TrainingOptions& options, const MemoryRequest& request) {
  return host_plan(run_buffers(options, request), request);
}

MemoryPlan plan_memory_of_use(const TrainingOptions& options, const MemoryRequest& request) {
  return device_plan(use_buffers(options, request), request);
}
MemoryPlan plan_host_memory_of_use(const TrainingOptions& options, const MemoryRequest& request) {
  return host_plan(use_buffers(options, request), request);
}

int worst_rank(const TrainingOptions& options, int world_size) {
  if (options.optimizer.type != optim::OptimizerType::kMuon) return 0;
  if (!options.placement.optimizer_sharded) return 0;
  TrainingOptions one_block = options;
  one_block.model.num_layers = 1;
  const auto units = plan_units(one_block, world_size);
  int worst = 0;
  std::int64_t most = -1;
  for (int rank = 0; rank < world_size; ++rank) {
    std::int64_t bytes = 0;
    for (const sharding::UnitPlan& unit : units) {
      const std::int64_t times =
          unit.spec.unit_class == UnitClass::kBlock ? options.model.num_layers : 1;
      bytes += times * optim::second_moment_numel(unit, rank);
    }
    if (bytes > most) {
      most = bytes;
      worst = rank;
    }
  }
  return worst;
}

}  // namespace sherd::engine
