#include <algorithm>
#include <atomic>
#include <vector>

#include "core/exact_sum.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kSumTask = 65'536;

/// Whether any exponent in the block is all ones.
template <class Bits>
bool any_non_finite(const Bits* x, int count, Bits exponent) {
  unsigned found = 0;
#pragma omp simd reduction(| : found)
  for (int i = 0; i < count; ++i) found |= (x[i] & exponent) == exponent ? 1u : 0u;
  return found != 0;
}

template <class Bits>
std::int64_t first_non_finite(ThreadTeam& team, const Bits* x, std::int64_t numel, Bits exponent) {
  std::atomic<std::int64_t> lowest{numel};
  parallel_blocks(team, numel, [&](std::int64_t first, int count) {
    if (first >= lowest.load(std::memory_order_relaxed)) return;
    if (!any_non_finite(x + first, count, exponent)) return;
    std::int64_t at = first;
    while ((x[at] & exponent) != exponent) ++at;
    std::int64_t known = lowest.load(std::memory_order_relaxed);
    while (at < known && !lowest.compare_exchange_weak(known, at, std::memory_order_relaxed)) {
    }
  });
  const std::int64_t at = lowest.load();
  return at == numel ? -1 : at;
}

}  // namespace

void sum_of_squares(ThreadTeam& team, ConstTensor x, Tensor out) {
  std::vector<ExactSum> sums(static_cast<std::size_t>(team.num_threads()));
  dispatch_float(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    team.parallel_for((x.numel + kSumTask - 1) / kSumTask, [&](std::int64_t task, int thread) {
      ExactSquares squares(sums[static_cast<std::size_t>(thread)]);
      for_each_block(task * kSumTask, std::min(x.numel, (task + 1) * kSumTask),
                     [&](std::int64_t first, int count) {
                       BlockScratch scratch;
                       squares.add(load_block(values + first, count, scratch), count);
                     });
    });
  });
  ExactSum total;
  for (const ExactSum& sum : sums) total.add(sum);
  std::ranges::copy(total.numbers(), out.as<double>());
}

std::int64_t find_non_finite(ThreadTeam& team, ConstTensor x) {
  // Read as bits: the test is the same for all three types and needs no conversion.
  switch (x.dtype) {
    case DType::kF32:
      return first_non_finite<std::uint32_t>(team, static_cast<const std::uint32_t*>(x.data),
                                             x.numel, 0x7f800000u);
    case DType::kBF16:
      return first_non_finite<std::uint16_t>(team, static_cast<const std::uint16_t*>(x.data),
                                             x.numel, 0x7f80u);
    case DType::kF16:
      return first_non_finite<std::uint16_t>(team, static_cast<const std::uint16_t*>(x.data),
                                             x.numel, 0x7c00u);
    default:
      break;
  }
  SHERD_CHECK(false, "{} where f32, bf16 or f16 was expected", name_of(x.dtype));
  __builtin_unreachable();
}

}  // namespace sherd::kernels::cpu
