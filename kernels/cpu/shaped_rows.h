/// A row of logits as the softmax reads it, and its sums. V: the row's length.
#pragma once

#include <algorithm>

#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/logits_form.h"

namespace sherd::kernels::cpu {

/// Calls `visit(first, count, z)` for the blocks of a row.
template <class T, class Form, class Visit>
void for_each_shaped_block(const T* logits_V, std::int64_t V, const Form& form,
                           const Visit& visit) {
  for_each_block(0, V, [&](std::int64_t first, int count) {
    BlockScratch in, shaped;
    visit(first, count, form.shape(load_block(logits_V + first, count, in), count, shaped));
  });
}

template <class T, class Form>
float maximum_of_row(const T* logits_V, std::int64_t V, const Form& form) {
  float maximum = -std::numeric_limits<float>::infinity();
  for_each_shaped_block(logits_V, V, form, [&](std::int64_t, int count, const float* z) {
    maximum = std::max(maximum, block_maximum(z, count));
  });
  return maximum;
}

/// The sum of exp(factor * (z - maximum)).
template <class T, class Form>
float sum_of_exponentials(const T* logits_V, std::int64_t V, const Form& form, float maximum,
                          float factor = 1.0f) {
  double sum = 0.0;
  for_each_shaped_block(logits_V, V, form, [&](std::int64_t, int count, const float* z) {
    BlockScratch out;
#pragma omp simd
    for (int i = 0; i < count; ++i) out.value[i] = fast_exp(factor * (z[i] - maximum));
    LaneSum lanes;
    lanes.add_values(out.value, count);
    sum += static_cast<double>(lanes.total());
  });
  return static_cast<float>(sum);
}

}  // namespace sherd::kernels::cpu
