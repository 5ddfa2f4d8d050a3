// Columns of one row's matmul of floats. Compiled with -mavx512f (cmake/compile_options.cmake).
#include "kernels/cpu/matmul/one_row_columns.h"

#ifdef __AVX512F__
#include "kernels/cpu/matmul/avx512/one_row_body.h"

namespace sherd::kernels::cpu {
namespace {

// No function: of one that is handed on, GCC makes a call.
constexpr auto add_float = [](__m512 sum, float a, Units16 b) {
  return _mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, sum);
};

void add_columns(const ColumnsOfOneRow<float>& p, float* sums) {
  constexpr std::int64_t kLine = ColumnsOfOneRow<float>::kPerLine;
  __m512 sum = add_whole_lines(p, add_float);
  for (std::int64_t k = p.depth / kLine * kLine; k < p.depth; ++k) {
    float x[16];
    for (int i = 0; i < 16; ++i) x[i] = p.column[i][k];
    sum = add_float(sum, p.a[k], load<Units16>(x));
  }
  _mm512_storeu_ps(sums, sum);
}

void add_interleaved(const InterleavedColumns& p, float* sums) {
  add_interleaved_columns(p, add_float, sums);
}

}  // namespace

AddColumnsOfFloats avx512_one_row() {
  return add_columns;
}
AddInterleaved avx512_interleaved_one_row() {
  return add_interleaved;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

AddColumnsOfFloats avx512_one_row() {
  return nullptr;
}
AddInterleaved avx512_interleaved_one_row() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
