#include "engine/inference/with_weights.h"

#include "core/human_text.h"
#include "engine/launch/device.h"
#include "engine/launch/stop_signals.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/memory_report.h"
#include "engine/recipe/device_rules.h"

namespace sherd::engine {
namespace {

/// As a run is checked, by what this machine has: what the checkpoint's recipe says of memory was
/// meant for another one.
struct Need {
  std::int64_t of_rank = 0;
  int num_ranks = 1;
  DeviceLimit limit;

  bool fits() const {
    std::int64_t all = of_rank;
    return !(limit.shared && __builtin_mul_overflow(of_rank, num_ranks, &all)) &&
           all <= limit.bytes;
  }
};

MemoryRequest request_of(const LaunchOptions& launch, const TrainedModel& trained) {
  const DeviceTraits& traits = launch.machine->traits();
  return {.mesh = launch.mesh,
          .num_threads = launch.compute_threads(),
          .device = traits.kind,
          .deterministic = trained.recipe.run.deterministic,
          .separate_memory = traits.separate_memory,
          .staging_bytes = traits.staging_bytes};
}

Need need_of(const TrainedModel& trained, const MemoryRequest& request, const Machine& machine) {
  const int on_host = machine.ranks_here(request.mesh.world_size()).on_host;
  return {plan_inference_memory(trained.options, request).arena_bytes(), on_host,
          device_limit(trained.recipe, {}, machine.devices_here())};
}

}  // namespace

bool fits(const TrainedModel& trained, const Machine& machine) {
  const std::shared_ptr<const Machine> borrowed(&machine, [](const Machine*) {});
  const MemoryRequest request = request_of(launch_options(trained.recipe, borrowed), trained);
  return need_of(trained, request, machine).fits();
}

void with_weights(const TrainedModel& trained, std::shared_ptr<const Machine> machine,
                  const std::function<void(sharding::Rank& rank, ShardedModel& model)>& use) {
  LaunchOptions launch = launch_options(trained.recipe, std::move(machine));
  require_model_possible_on(launch.machine->traits().kind, trained.recipe);
  const MemoryRequest request = request_of(launch, trained);
  const Need need = need_of(trained, request, *launch.machine);
  if (!need.fits() && trained.recipe.memory.on_exceed != OnExceed::kWarn) {
    throw UsageError("{}: using it on {} rank{} needs {} per rank; {} has {}. {}", trained.path,
                     need.num_ranks, need.num_ranks == 1 ? "" : "s", human_bytes(need.of_rank),
                     need.limit.shared ? "this machine" : "the device",
                     human_bytes(need.limit.bytes), trained.if_too_large);
  }
  const auto of_rank = [&request](int r) {
    MemoryRequest of_rank = request;
    of_rank.rank = r;
    return of_rank;
  };
  launch.plan = [&](int r) { return plan_inference_memory(trained.options, of_rank(r)); };
  launch.host_plan = [&](int r) { return plan_inference_host_memory(trained.options, of_rank(r)); };
  if (trained.handles_signals) install_stop_handlers();
  run_ranks(launch, [&](sharding::Rank& rank) {
    ShardedModel model(trained.options, rank);
    rank.guard([&] {
      load_weights(trained, model);
      use(rank, model);
    });
  });
}

}  // namespace sherd::engine
