// The same run in many orders of the machine's work: its bits don't change, and nothing races.
#include <gtest/gtest.h>

#include "tests/emulated_gpu/on_machine.h"
#include "tests/support/devices/gpu_meshes.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

// What streams do at the same time at stages 2 and 3: gathers ahead, gradients of one micro-step after another, updates,
// copies.
void expect_the_same_bits_in_orders(int count) {
  const auto on = [&](Place place, int stage) {
    const GpuMesh each{.shards = 2, .stage = stage, .micro_steps = 3, .dtype = DType::kBF16};
    Outcome first;
    for (int seed = 1; seed <= count; ++seed) {
      on_machine(place == Place::kGpus ? 2 : 1, static_cast<std::uint64_t>(seed), [&] {
        const Outcome outcome = train_on(each, place);
        if (seed == 1) first = outcome;
        EXPECT_EQ(difference(outcome, first), "") << "stage " << stage << ", seed " << seed;
      });
    }
  };
  on(Place::kGpus, 3);
  on(Place::kGpu, 2);
}

TEST(NcclOrders, TwentyOrdersOfARunHaveTheSameBits) {
  expect_the_same_bits_in_orders(20);
}

TEST(NcclOrdersMeshSlow, AThousandOrdersOfARunHaveTheSameBits) {
  expect_the_same_bits_in_orders(1000);
}

}  // namespace
}  // namespace sherd::testing
