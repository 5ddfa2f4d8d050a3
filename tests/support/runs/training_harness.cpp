#include "tests/support/runs/training_harness.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "core/offload_home.h"
#include "engine/data/batcher.h"
#include "engine/model/parameters.h"
#include "engine/offload/file_home.h"
#include "engine/offload/host_home.h"
#include "engine/plan/memory_plan.h"
#include "engine/train/token_feed.h"
#include "optim/compression.h"
#include "sharding/processes/environment.h"
#include "tests/support/devices/separate_device.h"
#include "tests/support/runs/free_port.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

bool is_gpu(const RunShape& setup) {
  return setup.place == RunShape::Place::kGpu || setup.place == RunShape::Place::kGpus;
}

// Test::HasFatalFailure reads a list to which another rank may be adding.
class FailedAssertions : public ::testing::EmptyTestEventListener {
 public:
  static const FailedAssertions& of_this_test() {
    static auto* const one = [] {
      auto* const made = new FailedAssertions;
      ::testing::UnitTest::GetInstance()->listeners().Append(made);  // which owns it
      return made;
    }();
    return *one;
  }
  bool any() const { return any_; }

 private:
  void OnTestStart(const ::testing::TestInfo&) override { any_ = false; }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.fatally_failed()) any_ = true;
  }
  std::atomic<bool> any_{false};
};

}  // namespace

std::string name_of(const RunShape& setup) {
  constexpr const char* kPlaces[] = {"", ", apart", ", apart and deferred", ", on a GPU",
                                     ", on a GPU each"};
  return fmt::format(
      "stage {}{} world {} + {} micro-steps {} {} prefetch {} {} threads {} delays {}{}{}{}",
      setup.stage, setup.divides_optimizer ? " over replicas" : "", setup.world_size, setup.owners,
      setup.num_micro_steps,
      setup.grad_sync == sharding::GradSync::kBoundary ? "boundary" : "every", setup.prefetch_depth,
      setup.reshard_after_forward ? "reshard" : "keep", setup.threads_per_rank, setup.delay_seed,
      kPlaces[static_cast<int>(setup.place)], setup.late_stream.empty() ? "" : ", late ",
      setup.late_stream);
}

std::string difference(const Outcome& a, const Outcome& b) {
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (std::bit_cast<std::uint64_t>(a.losses[i]) != std::bit_cast<std::uint64_t>(b.losses[i])) {
      return fmt::format("loss of step {}: {:.17g} and {:.17g}", i, a.losses[i], b.losses[i]);
    }
    if (std::bit_cast<std::uint32_t>(a.grad_norms[i]) !=
        std::bit_cast<std::uint32_t>(b.grad_norms[i])) {
      return fmt::format("gradient norm of step {}: {:.9g} and {:.9g}", i, a.grad_norms[i],
                         b.grad_norms[i]);
    }
  }
  for (const auto& [name, values] : a.parameters) {
    const std::vector<float>& others = b.parameters.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(others[i])) {
        return fmt::format("{}[{}]: {:.9g} and {:.9g}", name, i, values[i], others[i]);
      }
    }
  }
  return {};
}

model::ModelShape tiny_model(bool tied) {
  model::ModelShape shape;
  shape.num_layers = 3;
  shape.width = 24;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.ffn_width = 37;
  shape.vocab_size = 41;
  shape.max_positions = 11;
  shape.norm = tied ? kernels::NormKind::kLayerNorm : kernels::NormKind::kRmsNorm;
  shape.positions = tied ? model::Positions::kLearned : model::Positions::kRope;
  shape.activation = tied ? kernels::ActivationKind::kGelu : kernels::ActivationKind::kSwiGlu;
  if (tied) shape.biases = model::Biases::everywhere();
  shape.tied = tied;
  shape.dropout = 0.1;
  shape.init_std = 0.2;
  shape.sequences = 2;
  shape.seq_length = 9;
  return shape;
}

engine::TrainingOptions tiny_training(const model::ModelShape& shape, float max_norm) {
  engine::TrainingOptions options;
  options.model = shape;
  options.seed = 7;
  options.optimizer.beta2 = 0.95f;
  options.optimizer.decay = {0.1f, {}};
  options.lr_schedule.lr = 1e-2;
  options.max_norm = max_norm;
  return options;
}

BoundaryHook delays(std::uint64_t seed) {
  auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
  return [seed, count](std::string_view stream, std::string_view) {
    const std::uint64_t number = count->fetch_add(1);
    const std::uint64_t bits = mixed(seed ^ mixed(number) ^ std::hash<std::string_view>{}(stream));
    if (bits % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits / 4 % 200));
  };
}

engine::TrainingOptions applied(engine::TrainingOptions options, const RunShape& setup) {
  options.placement =
      sharding::placement_of(setup.stage, setup.grad_sync,
                             setup.divides_optimizer ? sharding::Replicas::kDivideOptimizer
                                                     : sharding::Replicas::kHoldCopies);
  const int replicas = mesh_of(setup).degree(sharding::kReplicateAxis);
  options.placement.batch_groups = setup.batch_groups > 0 ? setup.batch_groups : replicas;
  if (options.local_updates.active()) {
    options.placement.replicas_apart = true;
    options.placement.batch_groups = 1;
    options.local_updates.num_replicas = replicas;
  }
  if (options.compression) {
    auto compression = std::make_shared<optim::Compression>(*options.compression);
    compression->num_replicas = replicas;
    options.compression = compression;
  }
  options.placement.published_late = setup.publishes_late;
  options.gather = {setup.prefetch_depth, setup.reshard_after_forward};
  options.num_micro_steps = setup.num_micro_steps;
  if (mesh_of(setup).degree(sharding::kExpertAxis) > 1) options.divide_experts();
  return options;
}

sharding::Mesh mesh_of(const RunShape& setup) {
  const std::vector<sharding::MeshAxis> sharded = {
      {std::string(sharding::kShardAxis), setup.world_size}};
  return sharding::Mesh(setup.axes.empty() ? sharded : setup.axes, setup.owners);
}

engine::LaunchOptions launch_options(const RunShape& setup) {
  engine::LaunchOptions launch;
  launch.mesh = mesh_of(setup);
  launch.threads_per_rank = setup.threads_per_rank;
  if (setup.delay_seed != 0) launch.hook = delays(setup.delay_seed);
  if (!setup.slow_stream.empty()) {
    launch.hook = [slow = setup.slow_stream](std::string_view stream, std::string_view) {
      if (stream.starts_with(slow)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  if (!setup.late_stream.empty()) {
    launch.machine = std::make_shared<LateStreams>(setup.late_stream);
  }
  return launch;
}

void run_ranks(const RunShape& setup, const std::function<void(sharding::Rank&)>& body) {
  const FailedAssertions& failed = FailedAssertions::of_this_test();
  engine::run_ranks(launch_options(setup), [&](sharding::Rank& rank) {
    body(rank);
    if (failed.any()) throw std::runtime_error("an assertion failed");
  });
}

std::map<std::string, std::vector<float>> empty_parameters(const model::ModelShape& shape) {
  std::map<std::string, std::vector<float>> parameters;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      parameters[parameter.name].resize(static_cast<std::size_t>(parameter.numel()));
    }
  }
  return parameters;
}

void collect_parameters(const engine::ShardedModel& model,
                        std::map<std::string, std::vector<float>>& parameters) {
  const sharding::Rank& rank = model.rank();
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.trains() || !unit.contributes_slice()) continue;  // another rank writes the same
    if (unit.placement().replicas_apart &&
        rank.mesh.coordinate(rank.rank, sharding::kReplicateAxis) != 0) {
      continue;  // other values
    }
    Tensor slice = unit.fp32_slice(unit.own_slice());
    std::vector<float> from_disk;
    if (rank.offload_home && rank.offload_home->has(slice.data)) {
      from_disk.resize(static_cast<std::size_t>(slice.numel));
      rank.offload_home->copy(slice.data, from_disk.data(), slice.bytes());
      slice.data = from_disk.data();
    }
    for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const Tensor part = slice.part(piece.position, piece.count);
      std::vector<float>& whole = parameters.at(parameter.name);
      if (!parameter.cut) {
        rank.compute().copy(part.data, whole.data() + piece.first_element, part.bytes());
        rank.compute().synchronize();
        continue;
      }
      std::vector<float> values(static_cast<std::size_t>(piece.count));
      rank.compute().copy(part.data, values.data(), part.bytes());
      rank.compute().synchronize();
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::int64_t element = piece.first_element + i;
        if (!parameter.place_of(element).counts) continue;  // another rank writes the same
        whole[static_cast<std::size_t>(parameter.element_of_whole(element))] =
            values[static_cast<std::size_t>(i)];
      }
    }
  }
  rank.compute().synchronize();
}

void expect_memory_as_planned(const Arena& memory, const std::string& label) {
  const MemoryPlan& plan = memory.plan();
  EXPECT_EQ(memory.not_acquired(), std::vector<std::string>{}) << label;
  // Evaluations, which have buffers of their own, aren't in these runs.
  BytesByCategory peaks{};
  std::int64_t peak = 0;
  for (const Phase phase : {kInit, kForward, kLoss, kBackward, kUpdate}) {
    const BytesByCategory& planned =
        plan.by_phase()[std::countr_zero(static_cast<unsigned>(phase))];
    for (std::size_t i = 0; i < peaks.size(); ++i) peaks[i] = std::max(peaks[i], planned[i]);
    peak = std::max(peak, std::accumulate(planned.begin(), planned.end(), std::int64_t{0}));
  }
  EXPECT_EQ(memory.peak_bytes(), peak) << label;
  EXPECT_EQ(memory.peak_by_category(), peaks) << label;
  for (const Phase phase : {kForward, kLoss, kBackward, kUpdate}) {
    const int index = std::countr_zero(static_cast<unsigned>(phase));
    EXPECT_EQ(memory.peak_by_phase()[index], plan.by_phase()[index])
        << label << ", " << sherd::name_of(phase);
  }
}

void place_ranks(engine::LaunchOptions& launch, const RunShape& setup,
                 const std::function<std::vector<BufferSpec>(int r)>& buffers) {
  using Place = RunShape::Place;
  engine::MemoryRequest request;
  request.separate_memory = setup.place != Place::kHost;
  launch.plan = [=](int r) { return engine::device_plan(buffers(r), request); };
  launch.host_plan = [=](int r) { return engine::host_plan(buffers(r), request); };
  if (is_gpu(setup)) {
    launch.machine = engine::cuda_machine(
        setup.world_size,
        {.share_device = setup.place == Place::kGpu, .stream = {.graphs = setup.cuda_graphs}});
    launch.peer_timeout = std::chrono::seconds(60);
  } else if (setup.place != Place::kHost) {
    launch.machine = std::make_shared<SeparateDevice>(
        setup.late_stream.empty()
            ? SeparateDevice(setup.place == Place::kApartDeferred, setup.slow_rank)
            : SeparateDevice(LateStreams(setup.late_stream)));
  }
}

void place_training(engine::LaunchOptions& launch, const RunShape& setup,
                    const engine::TrainingOptions& options) {
  const int threads = launch.compute_threads();
  place_ranks(launch, setup, [&options, setup, threads](int r) {
    const bool apart = setup.place != RunShape::Place::kHost;
    auto buffers = engine::training_buffers(
        options, {.mesh = mesh_of(setup),
                  .rank = r,
                  .num_threads = threads,
                  .device = is_gpu(setup) ? DeviceKind::kCuda : DeviceKind::kCpu,
                  .separate_memory = apart});
    const auto copies = OffloadHome::copy_buffers(buffers, false, apart);
    buffers.insert(buffers.end(), copies.begin(), copies.end());
    if (!apart) return buffers;
    const auto batches = engine::batch_buffers(options);
    buffers.insert(buffers.end(), batches.begin(), batches.end());
    return buffers;
  });
}

namespace {

// As processes that the environment names (sharding/processes/environment.h).
void run_in_processes(const engine::LaunchOptions& launch, const RunShape& setup,
                      const std::function<void(sharding::Rank&)>& body) {
  constexpr std::chrono::seconds kPatience{60};
  const int port = test::free_port();
  std::vector<std::thread> threads;
  for (int process = 0; process < setup.world_size; ++process) {
    threads.emplace_back([&, process] {
      const std::shared_ptr<sharding::Processes> processes = sharding::join_environment(
          {process, setup.world_size, process, "127.0.0.1", port, "secret", true}, kPatience);
      engine::LaunchOptions own = launch;
      own.machine = engine::cuda_machine_of_process(processes, {});
      EXPECT_NO_THROW(engine::run_ranks(own, body)) << "process " << process;
      processes->end({}, kPatience);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Outcome train(engine::TrainingOptions options, const RunShape& setup, int num_steps) {
  options = applied(std::move(options), setup);
  Outcome outcome;
  outcome.parameters = empty_parameters(options.model);
  engine::LaunchOptions launch = launch_options(setup);
  const bool apart = setup.place != RunShape::Place::kHost;
  place_training(launch, setup, options);
  const test::TempFolder state;
  if (options.offloads()) {
    launch.offload_home = [&](const sharding::Rank& rank) {
      const auto plan = engine::plan_offload(options, {.mesh = rank.mesh, .rank = rank.rank});
      if (rank.separate_memory()) return engine::make_host_home(plan, rank);
      checkpoint::Disk& disk = setup.disk ? *setup.disk : checkpoint::posix_disk();
      return engine::make_file_home(plan, {.folder = state.path(), .disk = &disk});
    };
  }
  const auto body = [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    engine::NextBatch next_batch = tokens_for(options, rank, memory);
    std::optional<engine::TokenFeed> feed;
    if (apart) {
      feed.emplace(options, rank,
                   [&](std::int64_t step, std::int64_t micro_step, const data::Batch& batch) {
                     fill_tokens(options.model, step, first_row(options, rank, micro_step),
                                 batch.inputs.as<std::int32_t>(), batch.targets.as<std::int32_t>());
                   });
      feed->start(0);
      next_batch = [&](std::int64_t step, std::int64_t micro) { return feed->next(step, micro); };
    }
    rank.guard([&] {
      for (int step = 0; step < num_steps; ++step) {
        const DiskTraffic before = rank.offload_home ? rank.offload_home->traffic() : DiskTraffic{};
        const engine::StepResult result = training_step.run(step, next_batch);
        if (rank.offload_home && step > 0 && !result.skipped) {
          const DiskTraffic after = rank.offload_home->traffic();
          const auto planned = engine::TrainingStep::disk_traffic(options, rank.mesh, rank.rank);
          EXPECT_EQ(after.read - before.read, planned.read) << name_of(setup);
          EXPECT_EQ(after.written - before.written, planned.written) << name_of(setup);
        }
        if (rank.rank != 0) continue;
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
      }
      collect_parameters(model, outcome.parameters);
    });
    expect_memory_as_planned(static_cast<const Arena&>(*rank.memory), name_of(setup));
    if (apart) {
      EXPECT_EQ(static_cast<const Arena&>(*rank.host_memory).not_acquired(),
                std::vector<std::string>{});
    }
  };
  setup.processes ? run_in_processes(launch, setup, body) : engine::run_ranks(launch, body);
  return outcome;
}

}  // namespace sherd::testing
