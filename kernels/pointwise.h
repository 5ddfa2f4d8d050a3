/// Flat buffers: fill, cast, add, measure. An element's result doesn't depend on its position.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/dropout.h"

namespace sherd::kernels {

/// x[i] = 0.
void fill_zero(Stream& stream, Tensor x);

/// y[i] = x[i], converted (round to nearest even). Same type: a copy. Must not overlap unless
/// equal.
void cast(Stream& stream, ConstTensor x, Tensor y);

/// accumulator[i] += x[i], one f32 addition, rounded to the accumulator's type.
void add(Stream& stream, ConstTensor x, Tensor accumulator);

/// average[i] += weight * (x[i] - average[i]), in f32: equal values stay as they are. Weight 1
/// copies x. Both are f32 and don't overlap.
void move_towards(Stream& stream, ConstTensor x, float weight, Tensor average);
/// Exchanges the f32 elements of a and b, which don't overlap.
void exchange(Stream& stream, Tensor a, Tensor b);

/// out[i] = ((in_0[i] + in_1[i]) + in_2[i]) + ..., or with onto_out ((out[i] + in_0[i]) + in_1[i])
/// + ..., added in f32 in this order, rounded once. Inputs have one type, out may have another; it
/// may be one of the inputs. Used by communicators for sums in rank order. Runs on the calling
/// thread: it is host code for worker streams.
void sum_in_order_on_host(const ConstTensor* inputs, int num_inputs, Tensor out,
                          bool onto_out = false);

/// The same, but every `tree` = 2^n inputs are first summed as a balanced tree. For tree = 4:
///   out[i] = ((in_0[i] + in_1[i]) + (in_2[i] + in_3[i])) + ((in_4[i] + in_5[i]) + ...) + ...
void sum_as_trees_on_host(const ConstTensor* inputs, int num_inputs, int tree, Tensor out,
                          bool onto_out = false);

/// out[i] = residual[i] + scale * dropout(branch[i]); out may be residual.
void residual_add(Stream& stream, ConstTensor residual, ConstTensor branch, const Dropout& dropout,
                  Tensor out, float scale = 1.0f);

/// dx[i] = scale * dropout mask * dy[i]; dx may be dy.
void dropout_backward(Stream& stream, ConstTensor dy, const Dropout& dropout, Tensor dx,
                      float scale = 1.0f);

/// out = sum of x[i]^2, exactly: out [ExactSum::kNumbers] f64 in device memory (core/exact_sum.h).
/// Not finite if any x isn't. On a GPU it is first added in f64: blocks of 4096 elements, each over
/// fixed lanes, in order. workspace [ceil(numel / 4096)] f64.
void sum_of_squares(Stream& stream, ConstTensor x, Tensor out, Tensor workspace);
std::int64_t sum_of_squares_workspace_bytes(std::int64_t numel);

/// out = (add ? out : 0) + sum of x[i], exactly. x is f32, out as in sum_of_squares. On a GPU in
/// f64, in an order fixed by numel.
void sum(Stream& stream, ConstTensor x, Tensor out, bool add);

/// Index of the first element that is infinite or NaN, or -1. Blocks until known.
std::int64_t find_non_finite(Stream& stream, ConstTensor x);

/// out[i] = mean + stddev * normal(address, first_element + i): Box-Muller on Philox words, f64
/// inside, rounded to f32. Element e uses block e / 2 (two words a number):
///   normal = sqrt(-2 ln((a + 1) / 2^32)) cos(2 pi b / 2^32),
/// a, b being words 0, 1 of the block for even e and words 2, 3 for odd e. out is f32.
void fill_normal(Stream& stream, Tensor out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev);
/// out[i] = bound * (2 u - 1), u = (word(address, first_element + i) + 1/2) / 2^32, in f64, rounded
/// once. out is f32.
void fill_uniform(Stream& stream, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound);
/// u of one element's word, on host and device.
SHERD_HOST_DEVICE inline float uniform_number(std::uint32_t word, float bound) {
  const double u = (static_cast<double>(word) + 0.5) * (1.0 / 4294967296.0);
  return static_cast<float>(static_cast<double>(bound) * (2.0 * u - 1.0));
}
/// out[i] = value.
void fill_constant(Stream& stream, Tensor out, float value);

}  // namespace sherd::kernels
