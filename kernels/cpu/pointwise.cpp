#include "kernels/cpu/pointwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

/// Calls `function(first, bytes)` for the chunks of a buffer of bytes.
template <class Function>
void parallel_bytes(ThreadTeam& team, std::int64_t bytes, Function&& function) {
  constexpr std::int64_t kBytes = 4 * kChunk;
  team.parallel_for((bytes + kBytes - 1) / kBytes, [&](std::int64_t task, int) {
    const std::int64_t first = task * kBytes;
    function(first, static_cast<std::size_t>(std::min(kBytes, bytes - first)));
  });
}

// x may be y.
template <class From, class To>
void cast_block(const From* x, int count, To* y) {
  BlockScratch scratch;
  narrow(load_block(x, count, scratch), y, count);
}

template <class From, class To>
void cast_elements(ThreadTeam& team, const From* x, To* y, std::int64_t numel) {
  parallel_blocks(team, numel,
                  [=](std::int64_t first, int count) { cast_block(x + first, count, y + first); });
}

template <class T, class Accumulator>
void add_elements(ThreadTeam& team, const T* x, Accumulator* accumulator, std::int64_t numel) {
  parallel_blocks(team, numel, [=](std::int64_t first, int count) {
    BlockScratch x_scratch, old_scratch, sum_scratch;
    const float* values = load_block(x + first, count, x_scratch);
    const float* old = load_block(accumulator + first, count, old_scratch);
    float* sum = block_target(accumulator + first, sum_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) sum[i] = old[i] + values[i];
    store_block(accumulator + first, count, sum_scratch);
  });
}

// The partial sum stays on the stack until the last addition writes `out`, which may be any of the
// inputs: by then all others have been read for this block.
template <class In, class Out>
void sum_block_in_order(const ConstTensor* inputs, int num_inputs, bool onto_out,
                        std::int64_t first, int count, Out* out) {
  BlockScratch first_scratch, input_scratch, partial_scratch, out_scratch;
  const float* partial = onto_out ? load_block(out + first, count, first_scratch)
                                  : load_block(inputs[0].as<In>() + first, count, first_scratch);
  for (int k = onto_out ? 0 : 1; k < num_inputs; ++k) {
    const float* input = load_block(inputs[k].as<In>() + first, count, input_scratch);
    float* sum =
        k == num_inputs - 1 ? block_target(out + first, out_scratch) : partial_scratch.value;
#pragma omp simd
    for (int i = 0; i < count; ++i) sum[i] = partial[i] + input[i];
    partial = sum;
  }
  store_block(out + first, count, out_scratch);
}

template <class In>
void sum_block_as_tree(const ConstTensor* inputs, int num_inputs, std::int64_t first, int count,
                       float* total) {
  if (num_inputs == 1) return widen(inputs[0].as<In>() + first, total, count);
  const int half = num_inputs / 2;
  BlockScratch upper;
  sum_block_as_tree<In>(inputs, half, first, count, total);
  sum_block_as_tree<In>(inputs + half, half, first, count, upper.value);
#pragma omp simd
  for (int i = 0; i < count; ++i) total[i] += upper.value[i];
}

}  // namespace

void fill_zero(ThreadTeam& team, Tensor x) {
  auto* bytes = static_cast<char*>(x.data);
  parallel_bytes(team, x.bytes(), [=](std::int64_t first, std::size_t count) {
    std::memset(bytes + first, 0, count);
  });
}

void fill_constant(ThreadTeam& team, Tensor out, float value) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    T* y = out.as<T>();
    const T rounded = static_cast<T>(value);
    parallel_blocks(team, out.numel,
                    [=](std::int64_t first, int count) { std::fill_n(y + first, count, rounded); });
  });
}

void cast(ThreadTeam& team, ConstTensor x, Tensor y) {
  if (x.dtype == y.dtype) {
    if (x.data == y.data) return;
    const auto* from = static_cast<const char*>(x.data);
    auto* to = static_cast<char*>(y.data);
    parallel_bytes(team, x.bytes(), [=](std::int64_t first, std::size_t count) {
      std::memcpy(to + first, from + first, count);
    });
    return;
  }
  dispatch_float(x.dtype, [&]<class From>(From) {
    dispatch_float(y.dtype, [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) {
        cast_elements(team, x.as<From>(), y.as<To>(), x.numel);
      }
    });
  });
}

void add(ThreadTeam& team, ConstTensor x, Tensor accumulator) {
  dispatch_float(x.dtype, [&]<class T>(T) {
    dispatch_float(accumulator.dtype, [&]<class Accumulator>(Accumulator) {
      add_elements(team, x.as<T>(), accumulator.as<Accumulator>(), x.numel);
    });
  });
}

void move_towards(ThreadTeam& team, ConstTensor x, float weight, Tensor average) {
  const float* values = x.as<float>();
  float* means = average.as<float>();
  parallel_blocks(team, x.numel, [=](std::int64_t first, int count) {
    const float* value = values + first;
    float* mean = means + first;
#pragma omp simd
    for (int i = 0; i < count; ++i) mean[i] = mean[i] + weight * (value[i] - mean[i]);
  });
}

void exchange(ThreadTeam& team, Tensor a, Tensor b) {
  float *of_a = a.as<float>(), *of_b = b.as<float>();
  parallel_blocks(team, a.numel, [=](std::int64_t first, int count) {
    std::swap_ranges(of_a + first, of_a + first + count, of_b + first);
  });
}

void sum_in_order(const ConstTensor* inputs, int num_inputs, Tensor out, bool onto_out) {
  dispatch_float(inputs[0].dtype, [&]<class In>(In) {
    dispatch_float(out.dtype, [&]<class Out>(Out) {
      Out* y = out.as<Out>();
      for_each_block(0, out.numel, [=](std::int64_t first, int count) {
        if (num_inputs > 1 || onto_out) {
          sum_block_in_order<In>(inputs, num_inputs, onto_out, first, count, y);
        } else {
          cast_block(inputs[0].as<In>() + first, count, y + first);
        }
      });
    });
  });
}

void sum_as_trees(const ConstTensor* inputs, int num_inputs, int tree, Tensor out, bool onto_out) {
  dispatch_float(inputs[0].dtype, [&]<class In>(In) {
    dispatch_float(out.dtype, [&]<class Out>(Out) {
      for_each_block(0, out.numel, [&](std::int64_t first, int count) {
        // Not where it goes to, which may be one of the inputs.
        BlockScratch total, addend;
        if (onto_out) widen(out.as<Out>() + first, total.value, count);
        for (int k = 0; k < num_inputs; k += tree) {
          const bool begins = k == 0 && !onto_out;
          sum_block_as_tree<In>(inputs + k, tree, first, count,
                                begins ? total.value : addend.value);
          if (begins) continue;
#pragma omp simd
          for (int i = 0; i < count; ++i) total.value[i] += addend.value[i];
        }
        narrow(total.value, out.as<Out>() + first, count);
      });
    });
  });
}

void residual_add(ThreadTeam& team, ConstTensor residual, ConstTensor branch,
                  const Dropout& dropout, float scale, Tensor out) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    const T* r = residual.as<T>();
    const T* b = branch.as<T>();
    T* y = out.as<T>();
    parallel_blocks(team, out.numel, [&](std::int64_t first, int count) {
      residual_add_block(r + first, b + first, dropout, scale, first, count, y + first);
    });
  });
}

void dropout_backward(ThreadTeam& team, ConstTensor dy, const Dropout& dropout, float scale,
                      Tensor dx) {
  dispatch_float(dx.dtype, [&]<class T>(T) {
    const T* from = dy.as<T>();
    T* to = dx.as<T>();
    parallel_blocks(team, dx.numel, [&](std::int64_t first, int count) {
      BlockScratch scratch;
      const float* values = load_block(from + first, count, scratch);
      dropout_backward_block(values, dropout, scale, first, count, to + first);
    });
  });
}

}  // namespace sherd::kernels::cpu
