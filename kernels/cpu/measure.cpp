#include <atomic>
#include <cstring>

#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kSumBlock = 4096;  // stated in kernels/pointwise.h

using Float4 = float __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));

Double4 widened4(const float* x) {
  Float4 value;
  std::memcpy(&value, x, sizeof value);
  return __builtin_convertvector(value, Double4);
}

/// Sixteen sums in f64: element i goes to lane i mod 16. A square of f32 is exact there.
struct SquareLanes {
  Double4 lane[4] = {};

  void add(const float* x, int count) {
    Double4 a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    int i = 0;
    for (; i + 16 <= count; i += 16) {
      const Double4 xa = widened4(x + i), xb = widened4(x + i + 4);
      const Double4 xc = widened4(x + i + 8), xd = widened4(x + i + 12);
      a += xa * xa;
      b += xb * xb;
      c += xc * xc;
      d += xd * xd;
    }
    lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
    for (const int begin = i; i < count; ++i) {
      const double value = x[i];
      lane[(i - begin) / 4][(i - begin) % 4] += value * value;
    }
  }
  double total() const {
    const Double4 four = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    return (four[0] + four[1]) + (four[2] + four[3]);
  }
};

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

void sum_of_squares(ThreadTeam& team, ConstTensor x, Tensor out, Tensor workspace) {
  const std::int64_t num_blocks = (x.numel + kSumBlock - 1) / kSumBlock;
  auto* partial = workspace.as<double>();
  dispatch_float(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    team.parallel_for(num_blocks, [&](std::int64_t block, int) {
      SquareLanes lanes;
      const std::int64_t begin = block * kSumBlock;
      for_each_block(begin, std::min(x.numel, begin + kSumBlock),
                     [&](std::int64_t first, int count) {
                       BlockScratch scratch;
                       lanes.add(load_block(values + first, count, scratch), count);
                     });
      partial[block] = lanes.total();
    });
  });
  double total = 0.0;
  for (std::int64_t block = 0; block < num_blocks; ++block) total += partial[block];
  *out.as<double>() = total;
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
  CHECK(false, "{} where f32, bf16 or f16 was expected", name_of(x.dtype));
  __builtin_unreachable();
}

}  // namespace sherd::kernels::cpu
