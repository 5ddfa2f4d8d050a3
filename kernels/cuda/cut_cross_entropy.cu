// T tokens (rows), V of the vocabulary's rows, R ranks. One block does one row of the logits.
#include "kernels/cut_cross_entropy.h"

#include "kernels/cuda/cut_cross_entropy.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/taught_rows.cuh"
#include "kernels/device_common/logits_form.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::load_wide;
using device_common::store_narrow;

constexpr int kRowThreads = 1024;

// As in cross_entropy.cu: e^(x - most) of an x up to `most`.
__device__ inline float exp_below(float x, float most) {
  return exp2f((x - most) * 1.44269504088896341f);
}

template <class T>
struct Arguments {
  T* logits;
  const std::int32_t* targets;
  float *maxima, *sums, *losses;
  std::int64_t tokens, num_rows, first_row, all_rows;
  int num_ranks, rank;
  bool gradient;
  float grad_scale;
  const float* weights;  // null: all 1
  float z_loss;
  float* z_losses;  // null: none

  /// The largest of all ranks' maxima.
  __device__ float maximum(std::int64_t t) const {
    float most = maxima[t];
    for (int r = 1; r < num_ranks; ++r) {
      const float other = maxima[r * tokens + t];
      most = other > most ? other : most;
    }
    return most;
  }
  /// The target's row here; -1: another rank has it.
  __device__ std::int64_t target_row(std::int64_t t) const {
    const std::int32_t target = targets[t];
    if (target < 0 || target >= all_rows) __trap();
    const std::int64_t row = target - first_row;
    return row >= 0 && row < num_rows ? row : -1;
  }
};

// A thread has packs of N elements of a row: where the first begins, and how far the next is.
template <int N>
__device__ inline std::int64_t own_begin() {
  return static_cast<std::int64_t>(threadIdx.x) * N;
}
template <int N>
__device__ inline std::int64_t own_step() {
  return static_cast<std::int64_t>(blockDim.x) * N;
}

template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    maxima_of_rows(const Arguments<T> a, const Form form) {
  __shared__ float scratch[32];
  const std::int64_t t = blockIdx.x;
  const T* x = a.logits + t * a.num_rows;
  float most = -device_common::kInfinity;
#pragma unroll 2
  for (std::int64_t v = own_begin<N>(); v < a.num_rows; v += own_step<N>()) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      const float z = form.shape(pack[i]);
      most = z > most ? z : most;
    }
  }
  most = block_max(most, scratch);
  if (threadIdx.x == 0) a.maxima[a.rank * a.tokens + t] = most;
}

template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    exponentials_of_rows(const Arguments<T> a, const Form form) {
  __shared__ float scratch[32];
  const std::int64_t t = blockIdx.x;
  if (a.targets[t] == kNoTarget) {  // all threads of the block
    if (threadIdx.x == 0) a.sums[t] = a.sums[a.tokens + t] = 0.0f;
    return;
  }
  const T* x = a.logits + t * a.num_rows;
  const float maximum = a.maximum(t);
  float sum = 0.0f;
#pragma unroll 2
  for (std::int64_t v = own_begin<N>(); v < a.num_rows; v += own_step<N>()) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) sum += exp_below(form.shape(pack[i]), maximum);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  const std::int64_t row = a.target_row(t);
  a.sums[t] = sum;
  a.sums[a.tokens + t] = row < 0 ? 0.0f : form.shape(device_common::widen(x[row])) - maximum;
}

template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    losses_of_rows(const Arguments<T> a, const Form form) {
  const std::int64_t t = blockIdx.x;
  T* x = a.logits + t * a.num_rows;
  if (a.targets[t] == kNoTarget) {
    if (threadIdx.x == 0) a.losses[t] = 0.0f;
    if (threadIdx.x == 0 && a.z_losses != nullptr) a.z_losses[t] = 0.0f;
    const float zeros[N] = {};
    for (std::int64_t v = own_begin<N>(); a.gradient && v < a.num_rows; v += own_step<N>()) {
      store_narrow<N>(x + v, zeros);
    }
    return;
  }
  const float total = a.sums[t];
  if (threadIdx.x == 0) a.losses[t] = device_common::fast_log(total) - a.sums[a.tokens + t];
  if (!a.gradient && a.z_losses == nullptr) return;
  const float maximum = a.maximum(t);
  const float scale = a.weights == nullptr ? a.grad_scale : a.grad_scale * a.weights[t];
  float factor = scale / total;
  if (a.z_losses != nullptr) {
    const float lse = device_common::fast_log(total) + maximum;
    if (threadIdx.x == 0) a.z_losses[t] = z_loss_of(a.z_loss, lse);
    factor *= z_loss_factor(a.z_loss, lse);
  }
  if (!a.gradient) return;
  const std::int64_t target = a.target_row(t);
#pragma unroll 2
  for (std::int64_t v = own_begin<N>(); v < a.num_rows; v += own_step<N>()) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      const float z = form.shape(pack[i]);
      const float share = factor * exp_below(z, maximum);
      pack[i] = (v + i == target ? share - scale : share) * form.slope(z);
    }
    store_narrow<N>(x + v, pack);
  }
}

// With a teacher: its two sums, in addition to those of exponentials_of_rows.
template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    teacher_sums_of_rows(const Arguments<T> a, const Form form, const Taught taught) {
  __shared__ float scratch[32];
  const std::int64_t t = blockIdx.x;
  float* tempered_T = a.sums + 2 * a.tokens;
  if (a.targets[t] == kNoTarget) {  // all threads of the block
    if (threadIdx.x == 0) tempered_T[t] = tempered_T[a.tokens + t] = 0.0f;
    return;
  }
  const T* x = a.logits + t * a.num_rows;
  const float maximum = a.maximum(t), inverse = 1.0f / taught.temperature;
  float sum = 0.0f;
  for (std::int64_t v = own_begin<N>(); v < a.num_rows; v += own_step<N>()) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      sum += exp_below(inverse * (form.shape(pack[i]) - maximum), 0.0f);
    }
  }
  sum = block_sum(sum, scratch);
  const OwnToken own(taught, t, a.first_row, a.num_rows, a.all_rows);
  const float product = product_of(own, x, form, maximum, scratch);
  if (threadIdx.x != 0) return;
  tempered_T[t] = sum;
  tempered_T[a.tokens + t] = product;
}

template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    taught_losses_of_rows(const Arguments<T> a, const Form form, const Taught taught) {
  __shared__ float scratch[32];
  const std::int64_t t = blockIdx.x;
  T* x = a.logits + t * a.num_rows;
  if (a.targets[t] == kNoTarget) {
    if (threadIdx.x == 0) a.losses[t] = taught.divergences[t] = 0.0f;
    const float zeros[N] = {};
    for (std::int64_t v = own_begin<N>(); v < a.num_rows; v += own_step<N>()) {
      store_narrow<N>(x + v, zeros);
    }
    return;
  }
  const float sum = a.sums[t], tempered = a.sums[2 * a.tokens + t];
  const float entropy = negative_entropy(taught, t, scratch);
  if (threadIdx.x == 0) {
    a.losses[t] = device_common::fast_log(sum) - a.sums[a.tokens + t];
    taught.divergences[t] =
        entropy - a.sums[3 * a.tokens + t] / taught.temperature + device_common::fast_log(tempered);
  }
  const OwnToken own(taught, t, a.first_row, a.num_rows, a.all_rows);
  differentiate_taught_row<N>(taught, own, {a.maximum(t), sum, tempered}, a.grad_scale,
                              a.target_row(t), a.num_rows, form, scratch, x);
}

enum class Step { kMaxima, kSums, kLosses };

template <Step kStep, int N, class T, class Form>
void launch(Stream& stream, const Arguments<T>& a, const Form& form, const Teacher& teacher) {
  if constexpr (kStep != Step::kMaxima) {
    if (teacher) {
      const auto taught = [] {
        if constexpr (kStep == Step::kSums) return teacher_sums_of_rows<N, T, Form>;
        if constexpr (kStep == Step::kLosses) return taught_losses_of_rows<N, T, Form>;
      }();
      taught<<<grid_of(a.tokens), kRowThreads, 0, handle_of(stream)>>>(a, form, Taught(teacher));
      if (kStep == Step::kLosses) return;
    }
  }
  const auto kernel = [] {
    if constexpr (kStep == Step::kMaxima) return maxima_of_rows<N, T, Form>;
    if constexpr (kStep == Step::kSums) return exponentials_of_rows<N, T, Form>;
    if constexpr (kStep == Step::kLosses) return losses_of_rows<N, T, Form>;
  }();
  kernel<<<grid_of(a.tokens), kRowThreads, 0, handle_of(stream)>>>(a, form);
}

template <Step kStep>
void run(Stream& stream, const char* name, const CutCrossEntropy& args) {
  SHERD_CHECK(args.groups == 1, "cut cross-entropy: sums in {} groups on a GPU", args.groups);
  dispatch_float(args.logits.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    const Arguments<T> a{.logits = args.logits.as<T>(),
                         .targets = args.targets.as<std::int32_t>(),
                         .maxima = args.maxima.as<float>(),
                         .sums = args.sums.as<float>(),
                         .losses = args.losses.as<float>(),
                         .tokens = args.tokens,
                         .num_rows = args.num_rows,
                         .first_row = args.rows.first,
                         .all_rows = args.rows.all,
                         .num_ranks = args.num_ranks,
                         .rank = args.rank,
                         .gradient = args.gradient,
                         .grad_scale = args.grad_scale,
                         .weights = args.weights.as<float>(),
                         .z_loss = args.z_loss.coefficient,
                         .z_losses = args.z_loss.losses.as<float>()};
    const bool packs = args.num_rows % N == 0 && device_common::allow_packs(a.logits);
    const auto with = [&](const auto& form) {
      packs ? launch<kStep, N>(stream, a, form, args.teacher)
            : launch<kStep, 1>(stream, a, form, args.teacher);
    };
    args.form.is_neutral() ? with(device_common::PlainLogits{})
                           : with(device_common::ShapedLogits(args.form));
  });
  check_launch(name);
}

}  // namespace

void logit_maxima(Stream& stream, const CutCrossEntropy& args) {
  run<Step::kMaxima>(stream, "logit_maxima", args);
}

void exponential_sums(Stream& stream, const CutCrossEntropy& args) {
  run<Step::kSums>(stream, "exponential_sums", args);
}

void cut_cross_entropy(Stream& stream, const CutCrossEntropy& args) {
  run<Step::kLosses>(stream, "cut_cross_entropy", args);
}

}  // namespace sherd::kernels::cuda
