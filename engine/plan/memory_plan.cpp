#include "engine/plan/memory_plan.h"

#include "core/offload_home.h"
#include "engine/saving/checkpointing.h"
#include "engine/train/evaluation.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/sharded_model.h"
#include "engine/train/token_feed.h"
#include "engine/train/training_step.h"
#include "engine/train/weight_check.h"
#include "kernels/device.h"
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
  const kernels::ComputeDevice device{.kind = request.device,
                                      .num_threads = request.num_threads,
                                      .deterministic = request.deterministic};
  return ShardedModel::buffers(options, plan, device, request.rank);
}

std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const sharding::ShardingPlan& plan,
                                         const MemoryRequest& request) {
  SHERD_CHECK(request.num_threads >= 1, "a rank of {} threads", request.num_threads);
  std::vector<BufferSpec> buffers = model_buffers(options, plan, request);
  append(buffers, TrainingStep::buffers(options, plan, request.rank));
  if (request.separate_memory) append(buffers, WeightCheck::buffers(options));
  return buffers;
}

}  // namespace

std::vector<BufferSpec> training_buffers(const TrainingOptions& options,
                                         const MemoryRequest& request) {
  return training_buffers(options, sharding_plan(options, request.mesh, request.rank), request);
}

std::vector<BufferSpec> run_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  const sharding::ShardingPlan plan = sharding_plan(options, request.mesh, request.rank);
  std::vector<BufferSpec> buffers = training_buffers(options, plan, request);
  append(buffers, evaluation_buffers(options, request.mesh.world_size()));
  if (!request.mesh.is_owner(request.rank)) append(buffers, batch_buffers(options));
  append(buffers, sharding::staging_buffers(request.mesh, request.staging_bytes));
  append(buffers, checkpoint_buffers(options, request.saves, plan));
  append(buffers, OffloadHome::copy_buffers(buffers, request.saves, request.separate_memory));
  return buffers;
}

namespace {

std::vector<BufferSpec> use_buffers(const TrainingOptions& options, const MemoryRequest& request) {
  SHERD_CHECK(!options.placement.has_gradients, "a model that is only used has no gradients");
  std::vector<BufferSpec> buffers =
      model_buffers(options, sharding_plan(options, request.mesh, request.rank), request);
  append(buffers, evaluation_buffers(options, request.mesh.world_size()));
  append(buffers, sharding::staging_buffers(request.mesh, request.staging_bytes));
  buffers.push_back(checkpoint_reading_buffer());
  return buffers;
}

}  // namespace

MemoryPlan device_plan(std::vector<BufferSpec> buffers, const MemoryRequest& request) {
  std::erase_if(buffers, [&](const BufferSpec& buffer) {
    return buffer.home == Home::kDisk || (request.separate_memory && buffer.home == Home::kHost);
  });
  return MemoryPlan(std::move(buffers));
}

MemoryPlan host_plan(const std::vector<BufferSpec>& buffers, const MemoryRequest& request) {
  std::vector<BufferSpec> host;
  if (!request.separate_memory) return MemoryPlan(std::move(host));
  for (const BufferSpec& buffer : buffers) {
    if (buffer.home == Home::kHost) host.push_back(buffer);
    if (buffer.home == Home::kDisk) host.push_back(OffloadHome::on_host(buffer));
    if (buffer.home == Home::kMirrored) host.push_back(sharding::twin_of(buffer));
  }
  return MemoryPlan(std::move(host));
}

MemoryPlan offload_plan(std::vector<BufferSpec> buffers) {
  std::erase_if(buffers, [](const BufferSpec& buffer) { return buffer.home != Home::kDisk; });
  return MemoryPlan(std::move(buffers));
}

MemoryPlan plan_memory(const TrainingOptions& options, const MemoryRequest& request) {
  return device_plan(run_buffers(options, request), request);
}
MemoryPlan plan_host_memory(const TrainingOptions& options, const MemoryRequest& request) {
  if (!request.separate_memory) return MemoryPlan(std::vector<BufferSpec>{});
  return host_plan(run_buffers(options, request), request);
}

MemoryPlan plan_offload(const TrainingOptions& options, const MemoryRequest& request) {
  std::vector<BufferSpec> buffers;
  if (options.offloads()) buffers = run_buffers(options, request);
  return offload_plan(std::move(buffers));
}

MemoryPlan plan_inference_memory(const TrainingOptions& options, const MemoryRequest& request) {
  return device_plan(use_buffers(options, request), request);
}
MemoryPlan plan_inference_host_memory(const TrainingOptions& options,
                                      const MemoryRequest& request) {
  return host_plan(use_buffers(options, request), request);
}

}  // namespace sherd::engine
