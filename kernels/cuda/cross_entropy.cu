// T tokens (rows), V vocabulary. One block does one row: the maximum and the sum in one pass, the
// gradient in place in a second, which finds the row in the L2 cache if few blocks work at a time.
#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/taught_rows.cuh"
#include "kernels/device_common/logits_form.h"
#include "kernels/token.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::load_wide;
using device_common::store_narrow;

constexpr int kRowThreads = 1024;

// e^(x - most) of an x up to `most`, whose error is measured by the largest term, 1: the hardware's
// 2^x is exact enough.
__device__ inline float exp_below(float x, float most) {
  return exp2f((x - most) * 1.44269504088896341f);
}

// kernels/token.h, ZLoss: a row's loss, and the factor of its gradient.
struct ZLosses {
  float coefficient;
  float* losses;

  __device__ void skip(std::int64_t row) const {
    if (threadIdx.x == 0) losses[row] = 0.0f;
  }
  __device__ float apply(std::int64_t row, float total, float maximum, float factor) const {
    const float lse = device_common::fast_log(total) + maximum;
    if (threadIdx.x == 0) losses[row] = z_loss_of(coefficient, lse);
    return factor * z_loss_factor(coefficient, lse);
  }
  __device__ float scale(std::int64_t, float scale) const { return scale; }
};
struct NoZLosses {
  __device__ void skip(std::int64_t) const {}
  __device__ float apply(std::int64_t, float, float, float factor) const { return factor; }
  __device__ float scale(std::int64_t, float scale) const { return scale; }
};
struct TokenWeights : NoZLosses {
  const float* weights;
  __device__ explicit TokenWeights(const float* weights) : weights(weights) {}
  __device__ float scale(std::int64_t row, float scale) const { return scale * weights[row]; }
};

template <int N, class T, class Form, class RowLoss>
__device__ void do_row(T* logits, const std::int32_t* targets, float* losses,
                       std::int64_t vocab_size, const Form& form, bool gradient, float scale,
                       const RowLoss& more) {
  __shared__ float scratch[32];
  const std::int64_t row = blockIdx.x;
  T* x = logits + row * vocab_size;
  const std::int32_t target = targets[row];
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * N;
  if (target == kNoTarget) {  // all threads of the block
    if (threadIdx.x == 0) losses[row] = 0.0f;
    more.skip(row);
    const float zeros[N] = {};
    for (std::int64_t v = begin; gradient && v < vocab_size; v += step) {
      store_narrow<N>(x + v, zeros);
    }
    return;
  }
  if (target < 0 || target >= vocab_size) __trap();
  // Read by all before anyone writes.
  const float target_logit = form.shape(device_common::widen(x[target]));

  // A thread's sum is kept relative to the largest it has seen (Milakov & Gimelshein 2018).
  float most = -device_common::kInfinity, sum = 0.0f;
#pragma unroll 2
  for (std::int64_t v = begin; v < vocab_size; v += step) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) pack[i] = form.shape(pack[i]);
    float largest = most;
    for (int i = 0; i < N; ++i) largest = pack[i] > largest ? pack[i] : largest;
    if (largest == -device_common::kInfinity) {  // nothing yet but logits of no probability, or NaN
      for (int i = 0; i < N; ++i) sum = pack[i] == pack[i] ? sum : pack[i];
      continue;
    }
    if (largest > most) {
      sum *= exp_below(most, largest);
      most = largest;
    }
    for (int i = 0; i < N; ++i) sum += exp_below(pack[i], most);
  }
  const float maximum = block_max(most, scratch);
  // A thread that saw nothing has -inf and 0; its share is 0 and not NaN.
  const float total =
      block_sum(most == -device_common::kInfinity ? sum : sum * exp_below(most, maximum), scratch);
  if (threadIdx.x == 0) losses[row] = device_common::fast_log(total) + (maximum - target_logit);
  scale = more.scale(row, scale);
  const float factor = more.apply(row, total, maximum, scale / total);
  if (!gradient) return;
#pragma unroll 2
  for (std::int64_t v = begin; v < vocab_size; v += step) {
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

// Without a z-loss a thread takes fewer registers, so that two blocks fit a multiprocessor.
template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_row(T* logits, const std::int32_t* targets, float* losses,
                      std::int64_t vocab_size, const Form form, bool gradient, float scale) {
  do_row<N>(logits, targets, losses, vocab_size, form, gradient, scale, NoZLosses{});
}
template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_z_row(T* logits, const std::int32_t* targets, float* losses,
                        std::int64_t vocab_size, const Form form, bool gradient, float scale,
                        const ZLosses z_loss) {
  do_row<N>(logits, targets, losses, vocab_size, form, gradient, scale, z_loss);
}
template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_weighted_row(T* logits, const std::int32_t* targets, float* losses,
                               std::int64_t vocab_size, const Form form, bool gradient, float scale,
                               const float* weights) {
  do_row<N>(logits, targets, losses, vocab_size, form, gradient, scale, TokenWeights(weights));
}

// With a teacher, in three passes: maximum, sums, gradient.
template <int N, class T, class Form>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_taught_row(T* logits, const std::int32_t* targets, float* losses,
                             std::int64_t vocab_size, const Form form, bool, float scale,
                             const Taught taught) {
  __shared__ float scratch[64];
  const std::int64_t t = blockIdx.x;
  T* x = logits + t * vocab_size;
  const std::int32_t target = targets[t];
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * N;
  if (target == kNoTarget) {  // all threads of the block
    if (threadIdx.x == 0) losses[t] = taught.divergences[t] = 0.0f;
    const float zeros[N] = {};
    for (std::int64_t v = begin; v < vocab_size; v += step) store_narrow<N>(x + v, zeros);
    return;
  }
  if (target < 0 || target >= vocab_size) __trap();
  float most = -device_common::kInfinity, sum = 0.0f, tempered = 0.0f;
  for (std::int64_t v = begin; v < vocab_size; v += step) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      const float z = form.shape(pack[i]);
      most = z > most ? z : most;
    }
  }
  const float maximum = block_max(most, scratch);
  const float inverse = 1.0f / taught.temperature;
  for (std::int64_t v = begin; v < vocab_size; v += step) {
    float pack[N];
    load_wide<N>(x + v, pack);
    for (int i = 0; i < N; ++i) {
      const float z = form.shape(pack[i]);
      sum += exp_below(z, maximum);
      tempered += exp_below(inverse * (z - maximum), 0.0f);
    }
  }
  block_sums(sum, tempered, scratch);
  const OwnToken own(taught, t, 0, vocab_size, vocab_size);
  const float product = product_of(own, x, form, maximum, scratch);
  const float entropy = negative_entropy(taught, t, scratch);
  if (threadIdx.x == 0) {
    const float z = form.shape(device_common::widen(x[target]));
    losses[t] = device_common::fast_log(sum) + (maximum - z);
    taught.divergences[t] =
        entropy - product / taught.temperature + device_common::fast_log(tempered);
  }
  differentiate_taught_row<N>(taught, own, {maximum, sum, tempered}, scale, target, vocab_size,
                              form, scratch, x);
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& args) {
  SHERD_CHECK(!(args.z_loss && args.weights), "cross_entropy: weights with a z-loss on a GPU");
  dispatch_float(args.logits.dtype, [&]<class T>(T) {
    constexpr int N = device_common::pack_of<T>();
    T* logits = args.logits.as<T>();
    const bool packs = args.vocab_size % N == 0 && device_common::allow_packs(logits);
    const auto with = [&]<class Form>(const Form& form) {
      const auto launch = [&](auto kernel, const auto&... more) {
        kernel<<<grid_of(args.tokens), kRowThreads, 0, handle_of(stream)>>>(
            logits, args.targets.as<std::int32_t>(), args.losses.as<float>(), args.vocab_size, form,
            args.gradient, args.grad_scale, more...);
      };
      if (args.z_loss.losses) {
        const ZLosses z_loss{args.z_loss.coefficient, args.z_loss.losses.as<float>()};
        packs ? launch(cross_entropy_z_row<N, T, Form>, z_loss)
              : launch(cross_entropy_z_row<1, T, Form>, z_loss);
      } else if (args.teacher) {
        const Taught taught(args.teacher);
        packs ? launch(cross_entropy_taught_row<N, T, Form>, taught)
              : launch(cross_entropy_taught_row<1, T, Form>, taught);
      } else if (args.weights) {
        const float* weights = args.weights.as<float>();
        packs ? launch(cross_entropy_weighted_row<N, T, Form>, weights)
              : launch(cross_entropy_weighted_row<1, T, Form>, weights);
      } else {
        packs ? launch(cross_entropy_row<N, T, Form>) : launch(cross_entropy_row<1, T, Form>);
      }
    };
    args.form.is_neutral() ? with(device_common::PlainLogits{})
                           : with(device_common::ShapedLogits(args.form));
  });
  check_launch("cross_entropy");
}

void shape_logits(Stream& stream, const LogitsForm& form, const Tensor& logits) {
  dispatch_float(logits.dtype, [&]<class T>(T) {
    const device_common::ShapeLogits<T> work{device_common::ShapedLogits(form), logits.as<T>()};
    launch_flat<device_common::pack_of<T>()>(stream, "shape_logits", logits.numel,
                                             device_common::allow_packs(work.x), work);
  });
}

}  // namespace sherd::kernels::cuda
