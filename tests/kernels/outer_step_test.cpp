// The outer step of local updates, against double precision.
#include "kernels/outer_step.h"

#include <gtest/gtest.h>

#include <vector>

namespace sherd::kernels {
namespace {

float value(int i, int kind) {
  return static_cast<float>((i * 7919 + kind * 104729) % 2003 - 1001) / 997.0f;
}

struct OuterStepCase {
  std::vector<float> old, local, sum, velocity;
  explicit OuterStepCase(int count) {
    for (int i = 0; i < count; ++i) {
      old.push_back(value(i, 1));
      local.push_back(value(i, 2));
      sum.push_back(value(i, 3));
      velocity.push_back(value(i, 4));
    }
  }
};

Tensor view(std::vector<float>& values) {
  return {values.data(), DType::kF32, static_cast<std::int64_t>(values.size())};
}

TEST(OuterStep, IsSgdWithNesterovMomentumOnTheMeanChange) {
  for (const int threads : {1, 3}) {
    const auto stream = make_cpu_compute_stream({.num_threads = threads, .hook = {}});
    for (const int count : {1, 63, 64, 40'000}) {
      OuterStepCase given(count);
      const OuterStepCase before = given;
      outer_step(*stream, {.sum = view(given.sum),
                           .replicas = 3,
                           .rate = 0.7f,
                           .momentum = 0.9f,
                           .old = view(given.old),
                           .velocity = view(given.velocity)});
      for (std::size_t i = 0; i < given.old.size(); ++i) {
        const double change = static_cast<double>(before.sum[i]) / 3.0;
        const double b = 0.9 * static_cast<double>(before.velocity[i]) + change;
        ASSERT_NEAR(given.velocity[i], b, 3e-7) << i;
        ASSERT_NEAR(given.old[i], static_cast<double>(before.old[i]) - 0.7 * (change + 0.9 * b),
                    5e-7);
      }
    }
  }
}

TEST(OuterStep, WithoutMomentumFollowsTheMeanChange) {
  const auto stream = make_cpu_compute_stream({});
  OuterStepCase given(1000);
  const OuterStepCase before = given;
  outer_step(*stream,
             {.sum = view(given.sum), .replicas = 4, .rate = 2.0f, .old = view(given.old)});
  for (std::size_t i = 0; i < given.old.size(); ++i) {
    // Division by 4 and a factor of 2 are exact.
    ASSERT_EQ(given.old[i], before.old[i] - before.sum[i] / 2.0f);
  }
}

TEST(OuterChange, IsWhatAReplicaHasTakenAway) {
  const auto stream = make_cpu_compute_stream({});
  OuterStepCase given(777);
  outer_change(*stream, view(given.old), view(given.local), view(given.sum));
  for (std::size_t i = 0; i < given.old.size(); ++i) {
    ASSERT_EQ(given.sum[i], given.old[i] - given.local[i]);
  }
}

}  // namespace
}  // namespace sherd::kernels
