#include "engine/plan/time/from_recipe.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/launch/device.h"
#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/plan/machine_traffic.h"
#include "engine/recipe/offload.h"
#include "engine/train/from_recipe.h"
#include "engine/train/model_shape.h"
#include "optim/compressed_sum.h"
#include "optim/sparse_sum.h"

namespace sherd::engine {
namespace {

// Element-wise kernels of ours: additions to the residual stream are part of matmuls.
constexpr double kOurMemoryShare = 0.8;

Again again_of(Recompute mode) {
  switch (mode) {
    case Recompute::kNone:
      return Again::kNothing;
    case Recompute::kSelective:
      return Again::kNormsAndActivations;
    case Recompute::kFull:
      break;
  }
  return Again::kBlocks;
}

// Of each weight, in all moments.
double moment_bytes(const Recipe& recipe) {
  double moments = 0.0;
  switch (recipe.optimizer.type) {
    case OptimizerType::kAdamW:
    case OptimizerType::kAdam:
    case OptimizerType::kLamb:
      moments = 2.0;
      break;
    case OptimizerType::kLion:
    case OptimizerType::kLars:
    case OptimizerType::kMuon:
    case OptimizerType::kDion:
      moments = 1.0;
      break;
    case OptimizerType::kSgd:
      moments = recipe.optimizer.momentum > 0.0 ? 1.0 : 0.0;
      break;
    case OptimizerType::kAdafactor:
      break;  // numbers of rows and columns alone
  }
  // A byte, and a scale for 64 of them.
  if (recipe.optimizer.eight_bit_states) return moments * (1.0 + 4.0 / 64.0);
  return moments *
         static_cast<double>(size_of(dtype_of(recipe.mixed_precision.optimizer_state_dtype)));
}

// Memory that an update reads and writes for each weight: gradients, FP32 weights, moments, and the
// weights of the compute type.
double update_bytes(const Recipe& recipe) {
  const bool half = recipe.mixed_precision.param_dtype != FloatType::kF32;
  return 4.0 + 8.0 + 2.0 * moment_bytes(recipe) + (half ? 2.0 : 0.0);
}

// Read and written. If the host updates, gradients that come to it take longer than the rounded
// weights that go back at the same time.
double disk_bytes(const Recipe& recipe) {
  const sharding::OffloadOptions offload = offload_of(recipe);
  if (offload.host_updates) return 2.0 * 4.0;
  return (offload.moments ? 2.0 * moment_bytes(recipe) : 0.0) +
         (offload.master || offload.parameters ? 8.0 : 0.0);
}

Layout layout_of(const Recipe& recipe) {
  const auto& degrees = recipe.parallelism;
  const auto& zero = recipe.zero_optimization;
  return {.tensor = degrees.tensor_parallel_degree,
          .context = degrees.context_parallel_degree,
          .pipeline = degrees.pipeline_parallel_degree,
          .shard = degrees.data_parallel_shard_degree,
          .replicate = degrees.data_parallel_replicate_degree,
          .expert = degrees.expert_parallel_degree,
          .sequence_parallel = degrees.sequence_parallel,
          .context_method = degrees.context_parallel_method,
          .order = degrees.pipeline_schedule,
          .chunks = degrees.pipeline_parallel_degree > 1 ? degrees.pipeline_chunks_per_rank
                                                         : std::int64_t{1},
          .stage = static_cast<int>(zero.stage),
          .reduces_every_micro_step = zero.grad_sync == GradSync::kEveryMicroStep,
          .reshards = zero.stage == 3 && zero.reshard_after_forward,
          .prefetch_depth = zero.prefetch_depth,
          .again = again_of(recipe.activation_checkpointing.mode),
          .sequences = recipe.training.micro_batch_size,
          .micro_batches = recipe.training.gradient_accumulation_steps,
          .servers = degrees.parameter_servers,
          .publishes_late = degrees.publish_delay > 0,
          .sync_every = recipe.diloco.sync_every,
          .fragments = recipe.diloco.num_fragments,
          .sync_delay = recipe.diloco.fragment_sync_delay};
}

// Projections to latents and from them, and the output's (engine/model/sites.cpp).
double latent_weights(const model::ModelShape& shape) {
  const model::LatentShape& latent = shape.latent;
  if (!latent.active()) return 0.0;
  const std::int64_t queries = shape.query_heads * latent.head_width();
  return static_cast<double>((latent.query_rank > 0 ? latent.query_rank * (shape.width + queries)
                                                    : shape.width * queries) +
                             shape.width * latent.down_width() +
                             latent.kv_rank * latent.up_width(shape.query_heads) +
                             shape.width * shape.query_heads * latent.value);
}

}  // namespace

ModelSize model_size(const Recipe& recipe) {
  const model::ModelShape shape = training_options(recipe).model;
  return {.layers = shape.num_blocks(),
          .width = shape.width,
          .query_heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .head_width = shape.head_width(),
          .ffn_width = shape.ffn_width,
          .vocab_size = shape.vocab_size,
          .gated = shape.gated(),
          .dropout = shape.dropout > 0.0,
          .tied = shape.tied,
          .mixtures = shape.moe.active() ? shape.num_mixtures(0, shape.num_blocks()) : 0,
          .head_passes = 1 + shape.mtp_layers,
          .latent_weights = latent_weights(shape),
          .experts = shape.moe.experts,
          .per_token = shape.moe.per_token,
          .expert_width = shape.moe.ffn_width,
          .shared_width = shape.moe.shared_width};
}

namespace {

// Elements of an all-reduce with as many bytes. Entries have 8, and each replica gathers those of all.
std::int64_t sent_numel(const optim::Compression& compression, const UnitSpec& unit,
                        const ParameterSpec& parameter) {
  if (!compression.sparse.active()) {
    return optim::CompressedSum::factored_numel(compression, unit, parameter);
  }
  if (!optim::is_sparse(parameter)) return parameter.numel();
  return optim::sparse_entries(compression.sparse.compress_ratio, parameter) *
         compression.num_replicas;
}

// What replicas exchange of a compressed gradient, and its passes through memory.
void add_compression(const Recipe& recipe, StepShape& step) {
  if (!recipe.powersgd.active() && !recipe.dgc.active() && !recipe.optimizer.decouples_replicas()) {
    return;
  }
  const TrainingOptions options = training_options(recipe);
  std::int64_t all = 0, sent = 0;
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!model::is_trained(options.model, parameter.name)) continue;
      all += parameter.numel();
      sent += sent_numel(*options.compression, unit, parameter);
    }
  }
  step.compressed_bytes =
      4.0 * static_cast<double>(sent) / static_cast<double>(std::max<std::int64_t>(all, 1));
  step.compression_passes = 9.0;  // error added, two products, what is left and the sum formed
}

}  // namespace

StepShape step_shape(const Recipe& recipe) {
  const auto& precision = recipe.mixed_precision;
  StepShape step{.model = model_size(recipe), .layout = layout_of(recipe)};
  step.form.memory_share = kOurMemoryShare;
  // A matmul adds to the gradients of earlier micro-steps, where the order of sums is free.
  step.deterministic = recipe.run.deterministic;
  step.form.accumulate_bytes = recipe.run.deterministic ? 12.0 : 0.0;
  step.seq_length = recipe.training.seq_length;
  step.dtype = dtype_of(precision.param_dtype);
  // Blocks of 64 have a scale each.
  const auto bytes = [](bool in_8, bool in_4, double element) {
    return in_8 ? 8.5 / 8.0 : in_4 ? 4.5 / 8.0 : element;
  };
  const auto in_blocks = [&](kernels::BlockFormat format, DType dtype) {
    return bytes(format == kernels::BlockFormat::kInt8, format == kernels::BlockFormat::kInt4,
                 static_cast<double>(size_of(dtype)));
  };
  const sharding::Precision sent = training_options(recipe).precision;
  step.gather_bytes = in_blocks(sent.gather_blocks, sent.parameters);
  step.reduce_bytes = in_blocks(sent.reduce_blocks, sent.reduce);
  // Sums are added in blocks; what is sent back is a sum, or an updated parameter.
  const bool divides = recipe.zero_optimization.shard_optimizer_over_replicas;
  const auto returned = divides ? step.gather_bytes : static_cast<double>(size_of(sent.accumulate));
  step.replica_bytes = (in_blocks(sent.replica_blocks, sent.accumulate) + returned) / 2.0;
  step.outer_bytes = bytes(recipe.diloco.quantize == optim::Quantize::kInt8,
                           recipe.diloco.quantize == optim::Quantize::kInt4, 4.0);
  step.state_bytes = moment_bytes(recipe) + (step.dtype == DType::kF32 ? 0.0 : 4.0);
  step.gradient_bytes = static_cast<double>(size_of(sent.accumulate));
  step.divides_over_replicas = divides;
  step.update_bytes = update_bytes(recipe);
  step.disk_bytes = disk_bytes(recipe);
  const sharding::OffloadOptions offload = offload_of(recipe);
  step.host_updates = offload.host_updates;
  step.weights_away = offload.parameters;
  if (offload.host_updates) {
    // With the gradients that are written there, and the rounded weights that are read.
    step.host_bytes = std::exchange(step.update_bytes, 0.0) + 4.0 + 2.0;
  } else if (offload.on_host) {
    step.host_bytes = step.disk_bytes;
  }
  step.cuda_graphs = recipe.run.cuda_graphs;
  add_compression(recipe, step);
  return step;
}

std::unique_ptr<StepRates> gpu_rates_of(const Cluster& cluster, bool allow_tf32) {
  GpuRates rates = trained_gpu(cluster.device == "A100"   ? a100_rates()
                               : cluster.device == "H200" ? h200_rates()
                                                          : h100_rates());
  std::vector<std::string> assumed;
  if (cluster.device == "H200") assumed.emplace_back("whole steps: as on an H100");
  const ClusterLink &within = cluster.within, &between = cluster.between;
  if (within.bytes > 0.0) {
    // What eight H100 reach of 450 GB/s, with and without sums in the switch (gpu_rates.h).
    const double share = within.bytes / 450e9;
    rates.links.all_reduce = GpuLinks{}.all_reduce * share;
    rates.links.one_way = GpuLinks{}.one_way * share;
    rates.links.pair = GpuLinks{}.pair * share;
  } else {
    assumed.emplace_back("links within a machine: usual for the device");
  }
  if (within.latency > 0.0) rates.links.latency = within.latency;
  if (cluster.machines > 1 && between.bytes == 0.0) {
    assumed.push_back(
        fmt::format("links between machines: {:.0f} GB/s a GPU", rates.links.card / 1e9));
  }
  if (between.bytes > 0.0) rates.links.card = between.bytes;
  if (between.latency > 0.0) rates.links.far_latency = between.latency;
  if (cluster.host.bytes > 0.0) rates.links.host = cluster.host.bytes;
  constexpr double kUsualHostMemory = 400e9;
  rates.links.host_memory =
      (cluster.host_memory.bytes > 0.0 ? cluster.host_memory.bytes : kUsualHostMemory) /
      static_cast<double>(cluster.ranks_per_machine);
  auto made = std::make_unique<GpuStepRates>(rates, allow_tf32);
  made->assumed = std::move(assumed);
  return made;
}

namespace {

CpuLinks links_of(const Cluster& cluster, const Recipe& recipe) {
  const ReduceType part = recipe.mixed_precision.reduce_dtype;
  const bool adds =
      adds_on_machines(recipe) && !in_blocks(part);  // blocks are sent to their owners
  const auto part_bytes = static_cast<double>(size_of(dtype_of(formed_in(part))));
  return {.servers_elsewhere = cluster.machines > 1 || cluster.servers.is_given(),
          .passed_on = passes_gathers_on(recipe),
          .of_added = adds ? sizeof(float) / part_bytes : 0.0,
          .within = cluster.within,
          .between = cluster.between,
          .servers = cluster.servers};
}

}  // namespace

std::unique_ptr<StepRates> cpu_rates_of(const CpuRates& rates, const Recipe& recipe,
                                        const std::optional<Cluster>& cluster) {
  const std::int64_t servers = recipe.parallelism.parameter_servers;  // idle while workers compute
  const std::int64_t here = cluster ? cluster->ranks_per_machine : recipe.world_size() - servers;
  const std::int64_t given = recipe.run.num_threads;
  const std::int64_t all = cluster ? here : recipe.world_size();
  const std::int64_t threads = given > 0 ? given : std::max<std::int64_t>(1, rates.cores / all);
  auto made = std::make_unique<CpuStepRates>(
      rates, CpuStepRates::Ranks{static_cast<int>(here), static_cast<int>(threads)},
      cluster ? links_of(*cluster, recipe) : CpuLinks{});
  if (cluster) made->assumed.emplace_back("the machines: as this one, whose rates were measured");
  if (!cluster) return made;
  const bool has_links = cluster->machines > 1 || (servers > 0 && cluster->servers.is_given());
  if (has_links && cluster->between.bytes == 0.0) {
    made->assumed.emplace_back("links between machines: 1.25 GB/s a rank");
  }
  if (servers > 0 && has_links && cluster->servers.bytes == 0.0) {
    made->assumed.emplace_back("links of servers: as a worker's");
  }
  return made;
}

std::vector<std::string> assumed_of_offload(const Recipe& recipe,
                                            const std::optional<Cluster>& cluster,
                                            const StepRates& rates) {
  std::vector<std::string> assumed;
  if (!offload_of(recipe).on_host) return assumed;
  if (!cluster || cluster->host.bytes == 0.0) {
    assumed.push_back(
        fmt::format("links to the host's memory: {:.0f} GB/s each way", rates.disk_bytes() / 2e9));
  }
  if (!cluster || cluster->host_memory.bytes == 0.0) {
    assumed.push_back(fmt::format("a rank's share of the host's memory: {:.0f} GB/s",
                                  rates.host_memory_bytes() / 1e9));
  }
  return assumed;
}

std::unique_ptr<StepRates> rates_for(const Recipe& recipe, const std::optional<Cluster>& cluster,
                                     const std::optional<CpuRates>& cpus) {
  const bool on_cpus =
      cluster ? cluster->on_cpus() : device_traits(recipe).kind == DeviceKind::kCpu;
  if (on_cpus) return cpu_rates_of(cpus ? *cpus : cpu_rates(), recipe, cluster);
  const bool tf32 = recipe.mixed_precision.allow_tf32;
  const Cluster here{.machines = 1, .ranks_per_machine = recipe.world_size(), .device = "H100"};
  auto rates = gpu_rates_of(cluster ? *cluster : here, tf32);
  if (!cluster) rates->assumed.emplace_back("the GPU: an H100; name another in a --cluster file");
  std::ranges::move(assumed_of_offload(recipe, cluster, *rates),
                    std::back_inserter(rates->assumed));
  return rates;
}

}  // namespace sherd::engine
