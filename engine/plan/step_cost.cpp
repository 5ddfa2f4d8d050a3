#include "engine/plan/step_cost.h"

#include "engine/launch/device.h"
#include "engine/train/training_step.h"

namespace sherd::engine {
namespace {

// By Recompute. Full: 4 of forward's cost instead of 3 (Chen et al. 2016). Selective: what is left
// out are norms and activations, a fiftieth: an assumption of the size that Korthikanti et al. 2022
// give for recomputing attention alone (1.6-2.7 %).
constexpr double kRecomputeFactors[] = {1.0, 1.02, 4.0 / 3.0};
// Flops in the time in which a link moves a byte: 400 Tflop/s and 400 GB/s, an H100 in an NVLink
// node (NVIDIA's datasheet: 989 dense Tflop/s in bf16 and 450 GB/s each way, both at under half).
constexpr double kFlopsPerByte = 1000.0;
// Exposed fraction of communication that overlaps computation. An assumption: the first and last
// units have nothing to overlap with.
constexpr double kExposure = 0.25;
// With this many tokens, a matmul runs at half its rate. An assumption, the edge of a large GPU
// tile.
constexpr double kSmallBatchTokens = 128.0;
// Staging less than a whole save makes some updates wait for the disk. An assumption.
constexpr double kStagingFactor = 1.01;

// Flops in the time in which a byte of state is moved: 200 Gflop/s and a drive of 2 GB/s, or a GPU's
// 400 Tflop/s and 50 GB/s each way from and to its host. Assumptions.
double flops_per_offloaded_byte(DeviceKind device) {
  return device == DeviceKind::kCpu ? 100.0 : 4000.0;
}

}  // namespace

StepCost step_cost(const PlannedRecipe& planned) {
  const auto& [recipe, options, mesh, traits] = planned;
  const int ranks = mesh.world_size();
  // Of all ranks; those of one place in a pipeline are nearly alike.
  const int places = mesh.degree(sharding::kPipelineAxis), alike = mesh.num_workers() / places;
  double sent_bytes = 0.0, gathered = 0.0, disk_bytes = 0.0;
  for (int rank = mesh.num_workers(); rank < ranks; ++rank) {
    sent_bytes +=
        static_cast<double>(TrainingStep::traffic(options, mesh, rank, traits.kind).total_bytes());
  }
  for (int first = 0; first < mesh.num_workers(); first += alike) {
    const sharding::Traffic traffic = TrainingStep::traffic(options, mesh, first, traits.kind);
    sent_bytes += static_cast<double>(traffic.total_bytes()) * alike;
    for (int fragment = 0; fragment < options.local_updates.num_fragments; ++fragment) {
      if (!options.local_updates.active()) break;
      const auto exchange = TrainingStep::exchange_traffic(options, mesh, first, fragment);
      sent_bytes += static_cast<double>(exchange.total_bytes()) * alike /
                    static_cast<double>(options.local_updates.sync_every);
    }
    const DiskTraffic disk = TrainingStep::disk_traffic(options, mesh, first);
    disk_bytes += static_cast<double>(disk.read + disk.written) * alike;
    for (const sharding::Sent& sent : traffic.sent()) {
      if (sent.label == "parameters") gathered += static_cast<double>(sent.bytes) * alike;
    }
  }
  const bool waits = options.placement.parameters_sharded() && options.gather.prefetch_depth == 0;
  const double tokens =
      static_cast<double>(options.tokens_per_step(mesh.degree(sharding::data_axes())));
  StepCost cost;
  cost.flops = flops_per_token(options.model) * tokens *
               kRecomputeFactors[static_cast<std::size_t>(options.model.recompute)];
  cost.sent = sent_bytes;
  const double exposed = kExposure * cost.sent + (waits ? (1.0 - kExposure) * gathered : 0.0);
  cost.total =
      cost.flops * (1.0 + kSmallBatchTokens / static_cast<double>(options.model.tokens())) +
      kFlopsPerByte * exposed + flops_per_offloaded_byte(traits.kind) * kExposure * disk_bytes;
  if (recipe.checkpoint.saves() && recipe.checkpoint.staging_mib > 0) cost.total *= kStagingFactor;
  return cost;
}

}  // namespace sherd::engine
