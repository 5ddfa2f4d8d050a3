// Columns of one row's matmul as dot products of bf16 pairs. Compiled with -mavx512bf16
// (cmake/compile_options.cmake).
#include "kernels/cpu/matmul/one_row_columns.h"

#ifdef __AVX512BF16__
#include <bit>

#include "kernels/cpu/matmul/avx512/one_row_body.h"
#include "kernels/cpu/matmul/pack_forms.h"

namespace sherd::kernels::cpu {
namespace {

using Pairs = PairsOfBF16<Units::kPairs>;

// A pair of a times that pair of each column. No function: of one that is handed on, GCC makes a
// call.
constexpr auto add_pair = [](__m512 sum, float a, Units16 b) {
  const Units16 of_row = std::bit_cast<std::uint32_t>(a) - Units16{};
  return _mm512_dpbf16_ps(sum, (__m512bh)of_row, (__m512bh)b);
};

void add_columns(const ColumnsOfOneRow<BFloat16>& p, float* sums) {
  constexpr std::int64_t kLine = ColumnsOfOneRow<BFloat16>::kPerLine;
  __m512 sum = add_whole_lines(p, add_pair);
  for (std::int64_t u = p.depth / kLine * kUnitsOfLine; u < p.units; ++u) {
    float pair[16];
    for (int i = 0; i < 16; ++i) pair[i] = Pairs::one(p.column[i], 1, u, p.depth);
    sum = add_pair(sum, p.a[u], load<Units16>(pair));
  }
  _mm512_storeu_ps(sums, sum);
}

void add_interleaved(const InterleavedColumns& p, float* sums) {
  add_interleaved_columns(p, add_pair, sums);
}

}  // namespace

AddColumnsOfPairs avx512_bf16_one_row() {
  return add_columns;
}
AddInterleaved avx512_bf16_interleaved_one_row() {
  return add_interleaved;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

AddColumnsOfPairs avx512_bf16_one_row() {
  return nullptr;
}
AddInterleaved avx512_bf16_interleaved_one_row() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
