// Pipelines on the fake CUDA runtime and NCCL with our own kernels, in several orders of their work: on a GPU
// for each rank and on one that they share, losses, norms and weights are bit-identical to one rank.

#include <gtest/gtest.h>

#include "tests/emulated_gpu/on_machine.h"
#include "tests/support/devices/gpu_pipelines.h"

namespace sherd::testing {
namespace {

using schedule::Order;
using Place = RunShape::Place;

TEST(NcclPipeline, EveryScheduleHasTheBitsOfOneRank) {
  std::uint64_t seed = 0;
  for (const GpuPipeline& each : gpu_pipelines()) {
    on_machine(each.ranks, ++seed, [&] { expect_bits_of_one_rank(each, Place::kGpus); });
  }
}

// The first rank's receives are pending while it has messages of its own to send.
TEST(NcclPipeline, ARankThatAwaitsGradientsStillSendsItsActivations) {
  for (const Order order : {Order::kGPipe, Order::kZbV}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const GpuPipeline each{.order = order, .micro_batches = 6, .steps = 1};
      on_machine(2, seed, [&] { expect_bits_of_one_rank(each, Place::kGpus); });
    }
  }
}

// A kernel's first launch waits for all that its GPU has begun, so for receives that were posted before.
TEST(NcclPipeline, KernelsThatAreLoadedWhenFirstUsedDontWaitForMessagesThatNeedThem) {
  std::uint64_t seed = 0;
  for (const GpuPipeline& each : gpu_pipelines()) {
    on_machine(
        each.ranks, ++seed, [&] { expect_bits_of_one_rank(each, Place::kGpus); }, true);
  }
}

// NCCL adds shards in an order of its own, which stays the same from run to run.
TEST(NcclPipeline, ShardsOfEachPartTrainInEveryOrderOfTheirWork) {
  const GpuPipeline each{.order = Order::kZbH1, .micro_batches = 3, .stage = 3, .shards = 2};
  Outcome first;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    on_machine(4, seed, [&] {
      const Outcome outcome = train_on_gpus(each, Place::kGpus);
      if (seed == 1) first = outcome;
      EXPECT_EQ(difference(outcome, first), "") << "seed " << seed;
    });
  }
}

TEST(SharedDevicePipeline, MessagesArriveInEveryOrderOfTheMachinesWork) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const GpuPipeline each{.order = seed % 2 == 0 ? Order::kGPipe : Order::kZbV,
                           .micro_batches = 5,
                           .stage = 3,
                           .shards = seed == 4 ? 2 : 1};
    on_machine(1, seed, [&] { expect_bits_of_one_rank(each, Place::kGpu); });
  }
}

}  // namespace
}  // namespace sherd::testing
