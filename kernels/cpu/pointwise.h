/// CPU form of kernels/pointwise.h; the equations and rules are there.
#pragma once

#include <cmath>
#include <cstring>

#include "core/tensor.h"
#include "core/thread_team.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/random.h"
#include "kernels/dropout.h"

namespace sherd::kernels::cpu {

void fill_zero(ThreadTeam& team, Tensor x);
void fill_constant(ThreadTeam& team, Tensor out, float value);
void cast(ThreadTeam& team, ConstTensor x, Tensor y);
void add(ThreadTeam& team, ConstTensor x, Tensor accumulator);
void move_towards(ThreadTeam& team, ConstTensor x, float weight, Tensor average);
void exchange(ThreadTeam& team, Tensor a, Tensor b);
void sum_in_order(const ConstTensor* inputs, int num_inputs, Tensor out, bool onto_out);
void sum_as_trees(const ConstTensor* inputs, int num_inputs, int tree, Tensor out, bool onto_out);
void residual_add(ThreadTeam& team, ConstTensor residual, ConstTensor branch,
                  const Dropout& dropout, float scale, Tensor out);
void dropout_backward(ThreadTeam& team, ConstTensor dy, const Dropout& dropout, float scale,
                      Tensor dx);
/// In kernels/cpu/measure.cpp, like the next one.
void sum_of_squares(ThreadTeam& team, ConstTensor x, Tensor out);
std::int64_t find_non_finite(ThreadTeam& team, ConstTensor x);
/// In kernels/cpu/random_fill.cpp, like the next one.
void fill_normal(ThreadTeam& team, Tensor out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev);
void fill_uniform(ThreadTeam& team, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound);

/// out = residual + scale * dropout(branch) for one block; `offset` is the block's position in the
/// tensor.
template <class T>
void residual_add_block(const T* residual, const T* branch, const Dropout& dropout, float scale,
                        std::int64_t offset, int count, T* out) {
  BlockScratch residual_scratch, branch_scratch, out_scratch;
  const float* r = load_block(residual, count, residual_scratch);
  const float* b = load_block(branch, count, branch_scratch);
  if (dropout.active()) {
    apply_dropout(dropout, offset, count, b, branch_scratch.value);
    b = branch_scratch.value;
  }
  float* sum = block_target(out, out_scratch);
#pragma omp simd
  for (int i = 0; i < count; ++i) sum[i] = std::fma(scale, b[i], r[i]);
  store_block(out, count, out_scratch);
}

/// dx = scale * dropout mask * dy for one block whose floats are given.
template <class T>
void dropout_backward_block(const float* dy, const Dropout& dropout, float scale,
                            std::int64_t offset, int count, T* dx) {
  BlockScratch scratch;
  float* target = block_target(dx, scratch);
  if (dropout.active()) {
    apply_dropout(dropout, offset, count, dy, target);
  } else if (target != dy) {
    std::memcpy(target, dy, static_cast<std::size_t>(count) * sizeof(float));
  }
  if (scale != 1.0f) {
#pragma omp simd
    for (int i = 0; i < count; ++i) target[i] *= scale;
  }
  store_block(dx, count, scratch);
}

}  // namespace sherd::kernels::cpu
