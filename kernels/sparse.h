/// What deep gradient compression (Lin et al. 2018, arXiv:1712.01887) computes on a rank: it adds up
/// gradients, and selects the largest sums. All numbers are f32 unless stated. CPU only.
///
/// Bits     a function of the values alone: the same on any number of threads and with every
///          instruction set.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// An element that is sent.
struct SparseEntry {
  static constexpr std::uint32_t kNone = 0xffffffffu;

  std::uint32_t index = kNone;  ///< in a unit's flat buffer; kNone: nothing is sent
  float value = 0.0f;
};
/// Bytes of this number of entries, which tensors hold as u8.
inline constexpr std::int64_t entry_bytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(SparseEntry));
}

/// sums[b] = sum over i of x[64 b + i]^2, f64, in the order of i. x has whole blocks.
void squares_of_blocks(Stream& stream, ConstTensor x, Tensor sums);

/// g = gradient[i] times `factor`, then within [-limit, limit] if limit > 0; a gradient that isn't
/// finite stays as it is
///   velocity[i] = momentum velocity[i] + g;   error[i] = error[i] + velocity[i]
/// or without a velocity error[i] = error[i] + g.
struct SparseAccumulation {
  ConstTensor gradient{};
  float limit = 0.0f, momentum = 0.0f;
  Tensor velocity{};  ///< may be empty
  Tensor error{};
  /// f64, read when the work is done: the factor is min(1, bound / sqrt(sum of squares[0 .. n))).
  /// Empty: 1. A sum that isn't finite gives 1, too.
  ConstTensor squares{};
  double bound = 0.0;
};
void accumulate_sparsely(Stream& stream, const SparseAccumulation& args);

/// How the elements of a chunk of n are chosen whose absolute values are largest:
///
///   samples     every (n / s)-th element, s = min(n, max(ceil(n sample_ratio), ceil(2 / ratio)))
///   threshold   the ceil(s ratio)-th largest of them
///   adapted     unless all are samples: at most `max_adaptations` times, if more than
///               upper_bound k elements reach the threshold, it is multiplied by upper_bound; if
///               fewer than lower_bound k, by lower_bound; k = ceil(n ratio)
///   chosen      the first k elements that reach it, without zeros
///
/// If the chunk has elements that aren't finite, the first k of these are chosen instead.
struct SparseRules {
  double ratio = 0.001, sample_ratio = 0.01;
  float lower_bound = 0.8f, upper_bound = 1.3f;
  int max_adaptations = 10;
};
/// k
std::int64_t num_chosen(double ratio, std::int64_t numel);
/// Writes k entries: those chosen from `chunk`, by ascending index, which counts from `first`; then
/// entries without an element.
void choose_largest(Stream& stream, const SparseRules& rules, ConstTensor chunk, std::int64_t first,
                    Tensor entries);

/// out[index - first] += value for the entries in [first, first + n), in their order.
void add_entries(Stream& stream, ConstTensor entries, std::int64_t first, Tensor out);
/// x[index - first] = 0 for them.
void zero_entries(Stream& stream, ConstTensor entries, std::int64_t first, Tensor x);

}  // namespace sherd::kernels
