// Rows of logits that a teacher has an opinion of (kernels/teacher.h): device functions of the plain
// and the cut cross-entropy. One block does one row; a thread has at most one of its teacher's tokens.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/logits_form.h"
#include "kernels/teacher.h"

namespace sherd::kernels::cuda {

struct Taught {
  const std::int32_t* ids;
  const float* probabilities;
  float* divergences;
  int top;
  float weight, temperature;

  explicit Taught(const Teacher& teacher)
      : ids(teacher.ids.as<std::int32_t>()),
        probabilities(teacher.probabilities.as<float>()),
        divergences(teacher.divergences.as<float>()),
        top(static_cast<int>(teacher.form.top)),
        weight(teacher.form.weight),
        temperature(teacher.form.temperature) {}
};
static_assert(kMostTeacherTokens < 1024, "a thread for each token, and one for the target");

// A thread's token of the teacher: its row here, or -1, and its probability.
struct OwnToken {
  std::int64_t row = -1;
  float probability = 0.0f;

  __device__ OwnToken(const Taught& taught, std::int64_t t, std::int64_t first_row,
                      std::int64_t num_rows, std::int64_t all_rows) {
    if (static_cast<int>(threadIdx.x) >= taught.top) return;
    const std::int64_t at = t * taught.top + threadIdx.x;
    const std::int32_t id = taught.ids[at];
    if (id < 0 || id >= all_rows) __trap();
    if (id >= first_row && id < first_row + num_rows) row = id - first_row;
    probability = taught.probabilities[at];
  }
};

// Of the whole block: p (z - maximum), summed over the tokens in this row's part.
template <class T, class Form>
__device__ float product_of(const OwnToken& own, const T* x, const Form& form, float maximum,
                            float* scratch) {
  const bool counts = own.row >= 0 && own.probability > 0.0f;
  const float z = counts ? form.shape(device_common::widen(x[own.row])) - maximum : 0.0f;
  return block_sum(own.probability * z, scratch);
}

// Of the whole block: the sum of p ln p.
__device__ inline float negative_entropy(const Taught& taught, std::int64_t t, float* scratch) {
  float term = 0.0f;
  if (static_cast<int>(threadIdx.x) < taught.top) {
    const float p = taught.probabilities[t * taught.top + threadIdx.x];
    if (p > 0.0f) term = p * device_common::fast_log(p);
  }
  return block_sum(term, scratch);
}

struct TaughtSums {
  float maximum, sum, tempered_sum;
};

// The row becomes its gradient. `target`: its row here, or -1.
template <int N, class T, class Form>
__device__ void differentiate_taught_row(const Taught& taught, const OwnToken& own,
                                         const TaughtSums& sums, float scale, std::int64_t target,
                                         std::int64_t num_rows, const Form& form, float* scratch,
                                         T* x) {
  const float of_target = scale * (1.0f - taught.weight);
  const float of_teacher = scale * (taught.weight * taught.temperature);
  const float factor = of_target / sums.sum, tempered = of_teacher / sums.tempered_sum;
  const float inverse = 1.0f / taught.temperature;
  const auto softmaxes = [&](float z) {
    constexpr float kLog2E = 1.44269504088896341f;
    const float above = (z - sums.maximum) * kLog2E;
    return factor * exp2f(above) + tempered * exp2f(inverse * above);
  };
  // Read by all before anyone writes. The last thread has the target, if no other has it.
  const bool is_target = target >= 0 && own.row == target;
  const bool teacher_has_target = block_max(is_target ? 1.0f : 0.0f, scratch) > 0.0f;
  std::int64_t row = own.row;
  if (threadIdx.x == blockDim.x - 1 && !teacher_has_target) row = target;
  float special = 0.0f;
  if (row >= 0) {
    const float z = form.shape(device_common::widen(x[row]));
    special = softmaxes(z) - of_teacher * own.probability;
    if (row == target) special -= of_target;
    special *= form.slope(z);
  }
  __syncthreads();
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  for (std::int64_t v = static_cast<std::int64_t>(threadIdx.x) * N; v < num_rows; v += step) {
    float pack[N];
    device_common::load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      const float z = form.shape(pack[i]);
      pack[i] = softmaxes(z) * form.slope(z);
    }
    device_common::store_narrow<N>(x + v, pack);
  }
  __syncthreads();
  if (row >= 0) x[row] = device_common::narrow<T>(special);
}

}  // namespace sherd::kernels::cuda
