#include "kernels/cpu/outer_step.h"

#include "kernels/cpu/blocks.h"

namespace sherd::kernels::cpu {

void outer_change(ThreadTeam& team, ConstTensor old, ConstTensor local, Tensor change) {
  const float *before = old.as<float>(), *after = local.as<float>();
  float* out = change.as<float>();
  parallel_blocks(team, old.numel, [=](std::int64_t first, int count) {
#pragma omp simd
    for (int i = 0; i < count; ++i) out[first + i] = before[first + i] - after[first + i];
  });
}

void outer_step(ThreadTeam& team, const OuterStep& args) {
  const float* sum = args.sum.as<float>();
  float* old = args.old.as<float>();
  const float rate = args.rate, mu = args.momentum, replicas = static_cast<float>(args.replicas);
  if (!args.velocity) {
    return parallel_blocks(team, args.sum.numel, [=](std::int64_t first, int count) {
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        old[first + i] = old[first + i] - rate * (sum[first + i] / replicas);
      }
    });
  }
  float* velocity = args.velocity.as<float>();
  parallel_blocks(team, args.sum.numel, [=](std::int64_t first, int count) {
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const float change = sum[first + i] / replicas;
      const float b = mu * velocity[first + i] + change;
      velocity[first + i] = b;
      old[first + i] = old[first + i] - rate * (change + mu * b);
    }
  });
}

}  // namespace sherd::kernels::cpu
