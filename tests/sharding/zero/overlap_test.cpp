// Real overlap, and the meter that shows it: with delays injected into the gather streams, a step
// that fetches on demand reports them, and a step that fetches ahead hides them.

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "core/trace.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kWorld = 2;
constexpr int kNumLayers = 3;
// Embedding, three blocks, head, and the two blocks below the turn again.
constexpr int kGathersOnDemand = 7;

struct Metered {
  engine::StepResult result;
  int gathers = 0;  ///< of rank 0
};

bool is_gather(std::string_view stream, std::string_view label) {
  return stream == "gather" && label.starts_with("all_gather");
}

// One step at stage 3. The hook is called before and after everything that a stream does.
Metered run_one_step(int prefetch_depth, const BoundaryHook& hook) {
  const model::ModelShape shape = tiny_model(/*tied=*/false);
  EXPECT_EQ(shape.num_layers, kNumLayers);
  const engine::TrainingOptions options = applied(
      tiny_training(shape), {.world_size = kWorld, .stage = 3, .prefetch_depth = prefetch_depth});
  Trace trace;
  trace.start();
  engine::LaunchOptions launch;
  launch.mesh = sharding::Mesh::sharded(kWorld);
  launch.threads_per_rank = 1;
  launch.hook = hook;
  launch.trace = &trace;
  Metered metered;
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      const engine::StepResult result = step.run(0, next_batch);
      if (rank.rank == 0) metered.result = result;
    });
  });
  for (const Trace::Span& span : trace.spans()) {
    metered.gathers += span.rank == 0 && is_gather(span.stream, span.label);
  }
  return metered;
}

// Sleeps before and after every gather; optionally holds the compute stream after every wait, which
// is where the next unit's gather has been asked for and this unit's computation begins.
BoundaryHook delays_of(std::chrono::milliseconds gather, std::chrono::milliseconds compute) {
  return [=](std::string_view stream, std::string_view label) {
    if (is_gather(stream, label)) std::this_thread::sleep_for(gather);
    if (stream == "compute" && label == "wait") std::this_thread::sleep_for(compute);
  };
}

// 2 x 20 ms are injected into each gather; half of it is left to a busy machine.
TEST(ExposedCommunication, IsAtLeastTheDelayOfEveryGatherThatIsMadeOnDemand) {
  const Metered metered = run_one_step(/*prefetch_depth=*/0, delays_of(20ms, 0ms));
  EXPECT_EQ(metered.gathers, kGathersOnDemand);
  EXPECT_GE(metered.result.exposed_comm_ms, kGathersOnDemand * 20.0);
}

TEST(ExposedCommunication, VanishesUnderAComputationThatOutlastsTheGather) {
  const auto hook = delays_of(10ms, 50ms);
  const Metered on_demand = run_one_step(/*prefetch_depth=*/0, hook);
  const Metered ahead = run_one_step(/*prefetch_depth=*/1, hook);
  EXPECT_LT(ahead.result.exposed_comm_ms, on_demand.result.exposed_comm_ms / 2);
}

double of_axis(const engine::StepResult& result, std::string_view axis) {
  const auto found = std::ranges::find(result.exposed_by_axis, axis,
                                       [](const auto& of) { return std::string_view(of.first); });
  return found == result.exposed_by_axis.end() ? -1.0 : found->second;
}

double all_axes(const engine::StepResult& result) {
  double sum = 0.0;
  for (const auto& [axis, milliseconds] : result.exposed_by_axis) sum += milliseconds;
  return sum;
}

// The second of two steps of 2 micro-batches, with sleeps before and after what `stream` does as `label`.
engine::StepResult step_of(RunShape setup, std::string_view stream, std::string_view label,
                           std::chrono::milliseconds delay = 20ms) {
  setup.num_micro_steps = 2;
  setup.prefetch_depth = 0;
  for (const sharding::MeshAxis& axis : setup.axes) setup.world_size *= axis.degree;
  model::ModelShape shape = tiny_model(/*tied=*/false);
  shape.ffn_width = 38;
  shape.seq_length = 8;
  const engine::TrainingOptions options = applied(tiny_training(shape), setup);
  engine::LaunchOptions launch = launch_options(setup);
  launch.hook = [=](std::string_view of, std::string_view work) {
    if (of.starts_with(stream) && work.starts_with(label)) std::this_thread::sleep_for(delay);
  };
  engine::StepResult found;
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      step.run(0, next_batch);
      const engine::StepResult result = step.run(1, next_batch);
      if (rank.rank == 0) found = result;
    });
  });
  return found;
}
engine::StepResult step_on(const std::vector<sharding::MeshAxis>& axes, int stage,
                           std::string_view stream, std::string_view label) {
  return step_of({.axes = axes, .stage = stage}, stream, label);
}

// Each wait for what is slow is at least half as long as the sleeps in it: the rest is left to a busy machine.
TEST(ExposedCommunication, IsCountedForTheAxisWhoseRanksAreWaitedFor) {
  const std::vector<sharding::MeshAxis> cut{{"shard", 2}, {"tensor", 2}};
  const engine::StepResult gathers = step_on(cut, 3, "gather", "all_gather");
  EXPECT_GE(of_axis(gathers, "shard"), kGathersOnDemand * 20.0);
  EXPECT_GE(gathers.exposed_comm_ms, all_axes(gathers) - 1e-6);
  EXPECT_EQ(gathers.exposed_by_axis.size(), 2u) << "axes of one rank aren't there";

  const engine::StepResult sums = step_on(cut, 1, "compute", "all_reduce");
  EXPECT_GE(of_axis(sums, "tensor"), 2 * 4 * kNumLayers * 20.0) << "four sums a block";
  EXPECT_GT(of_axis(sums, "tensor"), of_axis(sums, "shard"));

  const engine::StepResult messages =
      step_on({{"pipeline", 2}, {"shard", 2}}, 1, "activations", "broadcast");
  EXPECT_GE(of_axis(messages, "pipeline"), 20.0);

  const std::vector<sharding::MeshAxis> hybrid{{"replicate", 2}, {"shard", 2}};
  // Long compared with the time that ranks on a busy machine are apart.
  const engine::StepResult copies =
      step_of({.axes = hybrid, .stage = 2}, "reduce", "all_reduce", 60ms);
  EXPECT_GE(of_axis(copies, "replicate"), 20.0);
  EXPECT_GT(of_axis(copies, "replicate"), of_axis(copies, "shard"));
  EXPECT_LT(of_axis(copies, "shard"), of_axis(copies, "replicate") / 4) << "of slots, too";
  const engine::StepResult slices = step_on(hybrid, 2, "reduce", "reduce_scatter");
  EXPECT_GE(of_axis(slices, "shard"), 20.0);

  // What replicas tell one another of their parts of an update.
  const engine::StepResult told = step_of(
      {.axes = {{"replicate", 2}}, .stage = 1, .divides_optimizer = true}, "gather", "all_gather");
  EXPECT_GE(of_axis(told, "replicate"), 20.0);

  const engine::StepResult heads = step_on({{"context", 2}}, 1, "compute", "all_to_all");
  EXPECT_EQ(heads.exposed_by_axis.size(), 1u);
  EXPECT_GE(of_axis(heads, "context"), 20.0);
}

double thread_cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

TEST(CommunicationCpuTime, CountsWhatTheWorkersBurn) {
  constexpr double kBurnMs = 4.0;
  const Metered idle = run_one_step(/*prefetch_depth=*/0, nullptr);
  const Metered busy = run_one_step(0, [](std::string_view stream, std::string_view label) {
    if (!is_gather(stream, label)) return;
    for (const double end = thread_cpu_ms() + kBurnMs; thread_cpu_ms() < end;) {
    }
  });
  EXPECT_GE(idle.result.comm_cpu_ms, 0.0);
  EXPECT_GE(busy.result.comm_cpu_ms, 2 * busy.gathers * kBurnMs);  // before and after each
  EXPECT_GT(busy.result.comm_cpu_ms, idle.result.comm_cpu_ms);
}

TEST(CommunicationCpuTime, DoesNotCountWorkersThatSleep) {
  const Metered metered = run_one_step(/*prefetch_depth=*/0, delays_of(30ms, 0ms));
  const double injected_ms = 2.0 * metered.gathers * 30.0;
  EXPECT_LT(metered.result.comm_cpu_ms, injected_ms / 2);
}

// In the trace of rank 0: the gather of a block begins before the block ahead of it is done.
TEST(Overlap, GathersTheNextBlockWhileTheLastOneComputes) {
  const model::ModelShape shape = tiny_model(false);
  const engine::TrainingOptions options =
      applied(tiny_training(shape), {.world_size = kWorld, .stage = 3, .prefetch_depth = 1});
  std::array<std::atomic<bool>, kWorld> gathered{};
  std::atomic<int> overlaps{0};
  run_ranks({.world_size = kWorld}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.guard([&] {
      sharding::ParameterGather& parameters = model.parameters();
      parameters.plan({model.block_unit(0), model.block_unit(1)});
      parameters.get(model.block_unit(0));
      // This rank is still at block 0. That the gather of block 1 completes now, on the worker and
      // with no call from here, is the overlap; without it this would wait forever.
      rank.gather().run("probe", [&] {
        gathered[static_cast<std::size_t>(rank.rank)] = true;
        gathered[static_cast<std::size_t>(rank.rank)].notify_one();
      });
      gathered[static_cast<std::size_t>(rank.rank)].wait(false);
      ++overlaps;
      parameters.release(model.block_unit(0));
      const auto waited = rank.compute().waited();
      parameters.get(model.block_unit(1));
      EXPECT_LT(rank.compute().waited() - waited, 1s) << "it was there already";
      parameters.release(model.block_unit(1));
    });
  });
  EXPECT_EQ(overlaps, kWorld);
}

}  // namespace
}  // namespace sherd::testing
