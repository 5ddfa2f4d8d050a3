#include "kernels/cpu/matmul/panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/matmul/pair_rounding.h"
#include "kernels/cpu/vectors.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

const TileKernels& tiles_without_amx(DType dtype) {
  return tiles_of(dtype, isa() == Isa::kAmx ? Isa::kAvx512Bf16 : isa());
}

float pair_of(std::uint32_t even, std::uint32_t odd) {
  return std::bit_cast<float>(odd << 16 | even);
}

// As elements of swapped floats. Subnormals become zero, as where pairs are rounded
// (pair_rounding.h): the largest of them would round to a normal number.
Float8 rounded(Float8 x) {
  const auto bits = std::bit_cast<Bits8>(x);
  const Bits8 nearest = bits_rounded_to_bf16(x) & 0xffff0000u;
  return std::bit_cast<Float8>((bits & 0x7f800000u) == 0u ? bits & 0x80000000u : nearest);
}

// Up to eight floats; what is missing is zero.
Float8 load_some(const float* x, std::int64_t count) {
  if (count >= 8) return load8(x);
  Float8 value{};
  std::memcpy(&value, x, static_cast<std::size_t>(count) * sizeof(float));
  return value;
}
void store_some(float* x, Float8 value, std::int64_t count) {
  if (count >= 8) return store8(x, value);
  std::memcpy(x, &value, static_cast<std::size_t>(count) * sizeof(float));
}

constexpr std::int64_t kBlock = 32;
static_assert(kBlock == kMaxTileColumns);

// At most kBlock elements of a row, from `first` on, as f32; exactly.
struct Widened {
  Widened(DType dtype, const void* values, std::int64_t first, std::int64_t count) {
    dispatch_float(dtype,
                   [&]<class T>(T) { widen(static_cast<const T*>(values) + first, value, count); });
  }
  float value[kBlock];
};

// Writes element k of a depth among units that lie `step` apart. Elements come in order: with the
// even one of a pair the odd one becomes zero.
void put_element(DType dtype, Units units, float value, std::int64_t k, std::int64_t step,
                 float* out) {
  if (dtype != DType::kBF16) {
    out[k * step] = value;
  } else if (units == Units::kFloats) {
    out[(k ^ 1) * step] = value;
    if (k % 2 == 0) out[k * step] = 0.0f;
  } else {
    float& unit = out[k / 2 * step];
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) >> 16;  // exact: value is a bf16
    unit =
        k % 2 == 0 ? pair_of(bits, 0) : pair_of(std::bit_cast<std::uint32_t>(unit) & 0xffffu, bits);
  }
}

void swap_rounded(float* row, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; k += 8) {
    const Float8 x = rounded(load_some(row + k, depth - k));
    store_some(row + k, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6), depth - k);
  }
}

void copy_swapped(const BFloat16* in, float* out, std::int64_t depth) {
  std::int64_t k = 0;
  for (; k + 1 < depth; k += 2) {
    out[k] = static_cast<float>(in[k + 1]);
    out[k + 1] = static_cast<float>(in[k]);
  }
  if (k == depth) return;
  out[k] = 0.0f;
  out[k + 1] = static_cast<float>(in[k]);
}

void copy_pairs(const BFloat16* in, float* out, std::int64_t depth) {
  if (depth % 2 != 0) out[depth / 2] = 0.0f;
  std::memcpy(out, in, static_cast<std::size_t>(depth) * sizeof(BFloat16));
}

}  // namespace

Panels::Panels(DType dtype)
    : dtype_(dtype),
      tiles_(tiles_without_amx(dtype)),
      packing_(packing_of_columns(dtype, tiles_)) {}

void Panels::pack(const StoredRows& b, std::int64_t depth, std::int64_t columns,
                  float* panels) const {
  packing_.across(b.first, b.stride, columns, depth, panels);
}

void Panels::pack_transpose(const StoredRows& b_t, std::int64_t depth, std::int64_t columns,
                            float* panels) const {
  packing_.along(b_t.first, b_t.stride, columns, depth, panels);
}

void Panels::put_row(const void* values, std::int64_t row, std::int64_t depth, std::int64_t columns,
                     float* panels) const {
  const std::int64_t width = tiles_.columns;
  for (std::int64_t j = 0; j < columns; j += width, panels += units(depth) * width) {
    const std::int64_t count = std::min(width, columns - j);
    const Widened part(dtype_, values, j, count);
    for (std::int64_t i = 0; i < count; ++i) {
      put_element(dtype_, tiles_.units, part.value[i], row, width, panels + i);
    }
  }
}

void Panels::put_column(const void* values, std::int64_t column, std::int64_t depth,
                        float* panels) const {
  const std::int64_t width = tiles_.columns;
  float* first = panels + column / width * width * units(depth) + column % width;
  for (std::int64_t k = 0; k < depth; k += kBlock) {
    const std::int64_t count = std::min(kBlock, depth - k);
    const Widened part(dtype_, values, k, count);
    for (std::int64_t i = 0; i < count; ++i) {
      put_element(dtype_, tiles_.units, part.value[i], k + i, width, first);
    }
  }
}

MatrixView Panels::left(const StoredRows& a, std::int64_t rows, std::int64_t depth,
                        float* copy) const {
  if (dtype_ == DType::kF32) return {static_cast<const float*>(a.first), a.stride};
  const std::int64_t stride = whole_pairs(depth);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* out = copy + r * stride;
    if (dtype_ == DType::kF16) {
      widen(static_cast<const Float16*>(a.first) + r * a.stride, out, depth);
    } else if (tiles_.units == Units::kPairs) {
      copy_pairs(static_cast<const BFloat16*>(a.first) + r * a.stride, out, depth);
    } else {
      copy_swapped(static_cast<const BFloat16*>(a.first) + r * a.stride, out, depth);
    }
  }
  return {copy, stride};
}

void Panels::to_units(float* row, std::int64_t depth) const {
  if (!rounds()) return;
  if (depth % 2 != 0) row[depth] = 0.0f;
  (tiles_.units == Units::kPairs ? avx512_bf16_rounding()->pack : swap_rounded)(row,
                                                                                whole_pairs(depth));
}

void Panels::turn(const float* even, const float* odd, std::int64_t columns, float* out,
                  std::int64_t stride) const {
  if (tiles_.units == Units::kPairs) return avx512_bf16_rounding()->turn(even, odd, columns, out);
  for (std::int64_t j = 0; j < columns; j += 8) {
    const std::int64_t count = columns - j;
    store_some(out + j, odd ? rounded(load_some(odd + j, count)) : Float8{}, count);
    store_some(out + stride + j, even ? rounded(load_some(even + j, count)) : Float8{}, count);
  }
}

void Panels::multiply(const PanelMatmul& matmul, std::int64_t rows, std::int64_t columns) const {
  const FlushSubnormals flush(dtype_ == DType::kBF16);
  const Tile& first = matmul.first;
  const std::int64_t b_units = units(matmul.b_depth);
  for (std::int64_t k = 0; k < first.depth; k += kPanelDepth) {
    Tile tile = first;
    tile.depth = units(std::min(kPanelDepth, first.depth - k));
    tile.add = first.add || k > 0;
    for (std::int64_t j = 0; j < columns; j += tiles_.columns) {
      const int width = static_cast<int>(std::min<std::int64_t>(tiles_.columns, columns - j));
      tile.b = first.b + j * b_units + units(k) * tiles_.columns;
      for (std::int64_t i = 0; i < rows; i += tiles_.rows) {
        tile.a = first.a + i * first.a_row + units(k) * first.a_depth;
        tile.c = first.c + i * first.c_stride + j;
        tiles_.multiply(tile, static_cast<int>(std::min<std::int64_t>(tiles_.rows, rows - i)),
                        width);
      }
    }
  }
}

}  // namespace sherd::kernels::cpu
