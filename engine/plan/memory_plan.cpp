#include "engine/plan/memory_plan.h"

#include "engine/model/activations.h"
#include "engine/saving/checkpointing.h"
#include "engine/train/evaluation.h"
#include "engine/train/frozen_weights.h"
#include "engine/train/model_collectives.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::engine {
namespace {

void append(std::vector<BufferSpec>& to, std::vector<BufferSpec> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::vector<BufferSpec> model_buffers(const TrainingOptions& options,
                                      const sharding::ShardingPlan& plan,
                                      const MemoryRequest& request) {
  std::vector<BufferSpec> buffers;
  for (const sharding::UnitPlan& unit : plan.units) {
    sharding::UnitBuffers at_rest = sharding::unit_buffers(unit);
    if (at_rest.resident) buffers.push_back(std::move(*at_rest.resident));
    if (at_rest.fp32_parameters) buffers.push_back(std::move(*at_rest.fp32_parameters));
    if (at_rest.gradients) buffers.push_back(std::move(*at_rest.gradients));
    if (at_rest.frozen) buffers.push_back(std::move(*at_rest.frozen));
    if (at_rest.quantised) buffers.push_back(std::move(*at_rest.quantised));
    if (at_rest.ranges) buffers.push_back(std::move(*at_rest.ranges));
  }
  for (sharding::GatherSlot& slot : sharding::gather_slots(plan.units, options.gather)) {
    if (slot.buffer) buffers.push_back(std::move(*slot.buffer));
    if (slot.frozen) buffers.push_back(std::move(*slot.frozen));
    if (slot.quantised) buffers.push_back(std::move(*slot.quantised));
  }
  if (auto bytes = sharding::quantised_gather_buffer(plan.units))
    buffers.push_back(std::move(*bytes));
  append(buffers, frozen_weight_buffers(plan.units, plan.mesh.world_size()));
  sharding::ReductionBuffers reduction =
      sharding::reduction_buffers(plan.units, options.num_micro_steps);
  for (auto& slot : reduction.slots) buffers.push_back(std::move(slot.buffer));
  for (auto& group : reduction.groups) {
    if (group) buffers.push_back(std::move(*group));
  }
  for (auto* buffer : {&reduction.head_end, &reduction.head_end_group}) {
    if (*buffer) buffers.push_back(std::move(**buffer));
  }
  buffers.push_back(loss_sum_buffer());
  const kernels::ComputeDevice device{.kind = request.device,
                                      .num_threads = request.num_threads,
                                      .deterministic = request.deterministic};
  const RankPipeline pipeline = rank_pipeline(options, request.mesh, request.rank);
  const std::optional<model::ModelPart> part = model_part(pipeline, options);
  const model::ModelShape shape = rank_model(options, request.mesh, request.rank);
  model::Activations(
      shape, device,
      [&](const BufferSpec& buffer) {
        buffers.push_back(buffer);
        return Buffer();
      },
      part ? &*part : nullptr);
  append(buffers, tensor_buffers(shape));
  append(buffers, Pipeline::buffers(options, pipeline, request.mesh, request.rank));
  return buffers;
}

}  // namespace

std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const MemoryRequest& request) {
  CHECK(request.num_threads >= 1, "a rank of {} threads", request.num_threads);
  const sharding::ShardingPlan plan = sharding_plan(options, request.mesh, request.rank);
  std::vector<BufferSpec> buffers = model_buffers(options, plan, request);
  append(buffers, TrainingStep::buffers(options, plan, request.rank));
  return buffers;
}

namespace {

std::vector<BufferSpec> run_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  std::vector<BufferSpec> buffers = training_buffers(options, request);
  append(buffers, evaluation_buffers(options, request.mesh.world_size()));
  append(buffers, batch_buffers(options));
  append(buffers, sharding::staging_buffers(request.mesh, request.staging_bytes));
  append(buffers, checkpoint_buffers(options, request.saves,
                                     sharding_plan(options, request.mesh, request.rank)));
  return buffers;
}

std::vector<BufferSpec> use_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  CHECK(!options.placement.has_gradients, "a model that is only used has no gradients");
  std::vector<BufferSpec> buffers =
      model_buffers(options, sharding_plan(options, request.mesh, request.rank), request);
  append(buffers, evaluation_buffers(options, request.mesh.world_size()));
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

MemoryPlan plan_inference_memory(const TrainingOptions& options, const MemoryRequest& request) {
  return device_plan(use_buffers(options, request), request);
}
MemoryPlan plan_inference_host_memory(const TrainingOptions& options,
                                      const MemoryRequest& request) {
  return host_plan(use_buffers(options, request), request);
}

}  // namespace sherd::engine
