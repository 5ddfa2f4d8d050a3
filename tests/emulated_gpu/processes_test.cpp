// A GPU for each process (sharding/processes/gpus_of_processes.h), on the fake CUDA runtime and NCCL with our own
// kernels: the bits of ranks that are threads of one process, with a GPU each.

#include <gtest/gtest.h>

#include "engine/plan/memory_report.h"
#include "tests/fake_cuda/machine.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

// NCCL adds in an order of its own, which is the same for the same group.
TEST(NcclProcessesRun, EveryStageHasTheBitsOfThreadsWithAGpuEach) {
  int run = 0;
  for (const int world : {2, 3}) {
    for (int stage = 0; stage <= 3; ++stage, ++run) {
      RunShape setup{.world_size = world,
                     .num_micro_steps = 1 + stage % 2,
                     .stage = stage,
                     .place = RunShape::Place::kGpus};
      Outcome outcomes[2];
      for (const bool processes : {false, true}) {
        fake_cuda::start({.num_devices = world, .seed = static_cast<std::uint64_t>(run + 1)});
        setup.processes = processes;
        outcomes[processes ? 1 : 0] =
            train(tiny_training(tiny_model(stage % 2 == 0), 1.0f), setup, 3);
        EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
        EXPECT_EQ(fake_cuda::left_behind(), "");
      }
      EXPECT_EQ(outcomes[1].losses.size(), 3u);
      EXPECT_EQ(difference(outcomes[1], outcomes[0]), "") << name_of(setup);
    }
  }
}

// A context takes hundreds of MiB of a GPU, which another process is filling.
TEST(NcclProcessesRun, AProcessAsksItsOwnGpuAloneForItsFreeMemory) {
  engine::Recipe recipe;
  recipe.run.device = engine::DeviceChoice::kCuda;
  recipe.parallelism.data_parallel_shard_degree = 4;
  const std::size_t gib = std::size_t{1} << 30;
  fake_cuda::start({.num_devices = 4, .free_bytes = {8 * gib, 40 * gib, 8 * gib, 8 * gib}});
  const engine::DeviceLimit own = engine::device_limit(recipe, {}, {1});
  EXPECT_EQ(fake_cuda::contexts(), std::set<int>{1});
  EXPECT_GT(own.bytes, static_cast<std::int64_t>(30 * gib));
}

}  // namespace
}  // namespace sherd::testing
