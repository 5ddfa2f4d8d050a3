#include "engine/launch/device.h"

#include "engine/train/from_recipe.h"

namespace sherd::engine {

DeviceTraits device_traits(const Recipe& recipe) {
  constexpr DeviceTraits kGpu = {DeviceKind::kCuda, true};
  if (recipe.run.device == DeviceChoice::kCpu) return {};
  if (recipe.run.device == DeviceChoice::kCuda) return kGpu;
  return cuda_system().problem.empty() ? kGpu : DeviceTraits{};
}

TrainingOptions options_on_device(const Recipe& recipe) {
  TrainingOptions options = training_options(recipe);
  options.adds_in_matmuls =
      device_traits(recipe).kind == DeviceKind::kCuda && !recipe.run.deterministic;
  return options;
}

std::shared_ptr<const Machine> choose_machine(const Recipe& recipe) {
  if (device_traits(recipe).kind == DeviceKind::kCpu) return cpu_machine();
  return cuda_machine(static_cast<int>(recipe.world_size()), cuda_options(recipe));
}

CudaMachineOptions cuda_options(const Recipe& recipe) {
  return {.share_device = recipe.run.share_device,
          .stream = {.allow_tf32 = recipe.mixed_precision.allow_tf32,
                     .deterministic = recipe.run.deterministic,
                     .graphs = recipe.run.cuda_graphs}};
}

int compute_threads(const Recipe& recipe) {
  return threads_of_rank(device_traits(recipe).kind, static_cast<int>(recipe.run.num_threads),
                         static_cast<int>(recipe.world_size()));
}

LaunchOptions launch_options(const Recipe& recipe, std::shared_ptr<const Machine> machine) {
  LaunchOptions launch;
  launch.mesh = mesh_of(recipe);
  const int decided = machine->traits().threads_per_rank;
  launch.threads_per_rank = decided > 0 ? decided : static_cast<int>(recipe.run.num_threads);
  launch.peer_timeout = std::chrono::seconds(recipe.run.peer_timeout);
  launch.machine = std::move(machine);
  return launch;
}

std::string device_line(const LaunchOptions& launch) {
  const int ranks = launch.world_size();
  return fmt::format("{} rank{} {}", ranks, ranks == 1 ? "" : "s",
                     launch.machine->description(ranks, launch.compute_threads()));
}

}  // namespace sherd::engine
