#include "kernels/cpu/matmul/one_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/one_row_columns.h"
#include "kernels/cpu/matmul/pack_forms.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kColumns = kOneRowColumns;
static_assert(kColumns == kInterleaved);
constexpr std::int64_t kMostTaskColumns = 768;
static_assert(kMostTaskColumns % kColumns == 0);
constexpr std::int64_t kMostUnits = 768;  // of a piece of the depth

// Elements of the depth that a block of eight columns has: eight units of 32 bits.
template <class Form>
constexpr std::int64_t kBlock = std::is_same_v<Form, SwappedBF16> ? 16 : 8;

// The pair that a word is, odd element first, or the float, times a's.
template <class Form>
Float8 add_word(Float8 word, const float* a, Float8 sum) {
  if constexpr (std::is_same_v<Form, SwappedBF16>) {
    const auto pair = std::bit_cast<Bits8>(word);
    const auto odd = std::bit_cast<Float8>(pair & 0xffff0000u);
    const auto even = std::bit_cast<Float8>(pair << 16);
    sum = multiply_add(a[0] - Float8{}, odd, sum);
    return multiply_add(a[1] - Float8{}, even, sum);
  } else {
    return multiply_add(a[0] - Float8{}, word, sum);
  }
}

// Such a block at depth k, each element times its own of a, added to a sum per column.
template <class Form>
Float8 add_block(const typename Form::Element* const* column, std::int64_t k, const float* a,
                 Float8 sum) {
  Float8 row[8], unit[8];
  if constexpr (std::is_same_v<Form, SwappedBF16>) {
    // Pairs are turned as they lie; then the odd element of each is its upper half.
    for (int i = 0; i < 8; ++i) row[i] = load<Float8>(column[i] + k);
    transpose<8>(row, unit);
    for (int i = 0; i < 8; ++i) sum = add_word<Form>(unit[i], a + k + 2 * i, sum);
  } else {
    for (int i = 0; i < 8; ++i) row[i] = Form::along(column[i], k);
    transpose<8>(row, unit);
    for (int i = 0; i < 8; ++i) sum = add_word<Form>(unit[i], a + k + i, sum);
  }
  return sum;
}

// Sums of kColumns columns, each a chain in the order of the units.
template <class Form>
void add_columns_in_halves(const ColumnsOfOneRow<typename Form::Element>& p, float* sums) {
  Float8 left{}, right{};
  const std::int64_t whole = p.depth / kBlock<Form> * kBlock<Form>;
  p.fetch_first();
  for (std::int64_t k = 0; k < whole; k += kBlock<Form>) {
    if (k % p.kPerLine == 0) p.fetch_next(k);
    left = add_block<Form>(p.column, k, p.a, left);
    right = add_block<Form>(p.column + 8, k, p.a, right);
  }
  for (std::int64_t u = whole; u < p.units; ++u) {
    for (int i = 0; i < 8; ++i) {
      left[i] = std::fma(p.a[u], Form::one(p.column[i], 1, u, p.depth), left[i]);
      right[i] = std::fma(p.a[u], Form::one(p.column[8 + i], 1, u, p.depth), right[i]);
    }
  }
  store8(sums, left);
  store8(sums + 8, right);
}

template <class Form>
void add_columns(const ColumnsOfOneRow<typename Form::Element>& p, float* sums) {
  add_columns_in_halves<Form>(p, sums);
}
template <>
void add_columns<Floats>(const ColumnsOfOneRow<float>& p, float* sums) {
  static const AddColumnsOfFloats wide = avx512_one_row();
  if (isa() == Isa::kAvx2) return add_columns_in_halves<Floats>(p, sums);
  wide(p, sums);
}

using Pairs = PairsOfBF16<Units::kPairs>;
template <>
void add_columns<Pairs>(const ColumnsOfOneRow<BFloat16>& p, float* sums) {
  static const AddColumnsOfPairs add = avx512_bf16_one_row();
  add(p, sums);
}

template <class Form>
void add_interleaved_in_halves(const InterleavedColumns& p, float* sums) {
  constexpr std::int64_t kUnitsOfWord = std::is_same_v<Form, SwappedBF16> ? 2 : 1;
  Float8 left{}, right{};
  p.for_each_unit([&](std::int64_t u, const std::uint32_t* words) {
    left = add_word<Form>(load<Float8>(words), p.a + kUnitsOfWord * u, left);
    right = add_word<Form>(load<Float8>(words + 8), p.a + kUnitsOfWord * u, right);
  });
  store8(sums, left);
  store8(sums + 8, right);
}

template <class Form>
AddInterleaved interleaved_form() {
  if constexpr (std::is_same_v<Form, Pairs>) {
    return avx512_bf16_interleaved_one_row();
  } else if constexpr (std::is_same_v<Form, WidenedF16>) {
    return nullptr;  // no such matrices
  } else {
    const bool wide = std::is_same_v<Form, Floats> && isa() != Isa::kAvx2;
    return wide ? avx512_interleaved_one_row() : add_interleaved_in_halves<Form>;
  }
}

// Columns [first, first + count) of c.
template <class Form>
void multiply_columns(const Matmul& p, std::int64_t first, std::int64_t count) {
  using T = typename Form::Element;
  const FlushSubnormals flush(p.dtype == DType::kBF16);
  const std::int64_t line = p.a.lines != nullptr ? p.a.lines[0] : 0;
  const T* a = static_cast<const T*>(p.a.data) + line * p.a.stride;
  const T* b = static_cast<const T*>(p.b.data);
  const bool adds_before = p.add && p.c.dtype == DType::kF32;
  float total[kMostTaskColumns];
  if (p.bias) widen(static_cast<const T*>(p.bias) + first, total, count);
  if (adds_before) std::copy_n(p.c.as<float>() + first, count, total);
  std::fill(total + count, total + round_up(count, kColumns), 0.0f);
  const std::int64_t piece = matmul_depth_piece(p.depth);
  constexpr std::int64_t kPerWord = kPerInterleavedUnit<T>;
  const auto words_at = [&](std::int64_t column, std::int64_t k) {
    return interleaved_unit(p.b.data, p.b.stride / kPerWord, column, k / kPerWord);
  };
  const AddInterleaved add_interleaved = interleaved_form<Form>();
  for (std::int64_t k = 0; k < p.depth; k += piece) {
    const std::int64_t depth = std::min(piece, p.depth - k);
    const std::int64_t units = num_units(p.dtype, Form::kUnits, depth);
    float a_units[kMostUnits + 8];
    const std::int64_t eights = depth / (8 * Form::kPerUnit) * 8;
    for (std::int64_t u = 0; u < eights; u += 8) store8(a_units + u, Form::along(a + k, u));
    for (std::int64_t u = eights; u < units; ++u) a_units[u] = Form::one(a + k, 1, u, depth);
    const bool is_first = k == 0 && !p.bias && !adds_before;
    for (std::int64_t j = 0; j < count; j += kColumns) {
      float sums[kColumns];
      // The next columns, or the first ones' next piece; another task's columns may be another
      // core's.
      const bool has_columns = j + kColumns < count, has_piece = k + piece < p.depth;
      if (first + j < p.b.interleaved) {
        const std::int64_t next = has_columns ? first + j + kColumns : first;
        add_interleaved({.words = words_at(first + j, k),
                         .count = depth / kPerWord,
                         .a = a_units,
                         .then = words_at(next, has_columns || !has_piece ? k : k + piece)},
                        sums);
      } else {
        ColumnsOfOneRow<T> columns{.depth = depth, .a = a_units, .units = units};
        for (std::int64_t i = 0; i < kColumns; ++i) {
          columns.column[i] = b + (first + std::min(j + i, count - 1)) * p.b.stride + k;
        }
        columns.then = has_columns ? kColumns * p.b.stride : has_piece ? piece - j * p.b.stride : 0;
        columns.is_first = k == 0 && j == 0;
        add_columns<Form>(columns, sums);
      }
      // All sixteen, also where a matrix has no more: total has room, and a loop of sixteen is
      // vectors.
      if (is_first) {
        std::copy_n(sums, kColumns, total + j);
      } else {
        for (std::int64_t i = 0; i < kColumns; ++i) total[j + i] += sums[i];
      }
    }
  }
  if (p.c.dtype == DType::kF32) {
    std::copy_n(total, count, p.c.as<float>() + first);
    return;
  }
  dispatch_float(p.c.dtype, [&]<class R>(R) {
    if (p.add) {
      add_narrowed(total, p.c.as<R>() + first, count);
    } else {
      narrow(total, p.c.as<R>() + first, count);
    }
  });
}

template <class Form>
void multiply(ThreadTeam& team, const Matmul& p) {
  // A column's chain knows nothing of its task, so tasks may follow the number of threads: long
  // ones are what memory reads fastest, since what comes after a task nobody fetches. So one for
  // each thread, up to a size.
  const std::int64_t groups = (p.columns + kColumns - 1) / kColumns;
  const std::int64_t columns =
      std::min(kMostTaskColumns, (groups + team.num_threads() - 1) / team.num_threads() * kColumns);
  const std::int64_t num_tasks = (p.columns + columns - 1) / columns;
  const auto task = [&](std::int64_t t, int) {
    const std::int64_t first = t * columns;
    multiply_columns<Form>(p, first, std::min(columns, p.columns - first));
  };
  // Below 64 KiB or so a second thread costs more than it brings.
  if (p.columns * p.depth >= (1 << 15)) return team.parallel_for(num_tasks, task);
  for (std::int64_t t = 0; t < num_tasks; ++t) task(t, 0);
}

}  // namespace

bool is_one_row(const Matmul& p) {
  const bool lies_right = !p.a.transposed && p.b.transposed;
  return p.rows == 1 && lies_right && tiles_of(p.dtype, isa()).units != Units::kTiles;
}

void multiply_one_row(ThreadTeam& team, const Matmul& p) {
  SHERD_CHECK(matmul_depth_piece(p.depth) <= kMostUnits, "pieces of {}",
              matmul_depth_piece(p.depth));
  switch (p.dtype) {
    case DType::kBF16:
      if (tiles_of(p.dtype, isa()).units == Units::kPairs) return multiply<Pairs>(team, p);
      return multiply<SwappedBF16>(team, p);
    case DType::kF16:
      return multiply<WidenedF16>(team, p);
    default:
      return multiply<Floats>(team, p);
  }
}

}  // namespace sherd::kernels::cpu
