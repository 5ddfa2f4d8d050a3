#include "kernels/cpu/matmul/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/pack_forms.h"

namespace sherd::kernels::cpu {
namespace {

// A panel's row is written in steps of 8, 4 or 6 floats; 6 as 8, of which the next row writes over
// the last two.
template <int kCount>
void store(float* x, Float8 value) {
  if constexpr (kCount == 4) {
    std::memcpy(x, &value, 4 * sizeof(float));
  } else {
    store8(x, value);
  }
}

template <class Form, int kWidth, int kFirst = 0>
void pack_eight_units(const typename Form::Element* const* line, std::int64_t u, float* out) {
  constexpr int kCount = std::min(8, kWidth - kFirst);
  Float8 row[kCount], column[8];
  for (int i = 0; i < kCount; ++i) row[i] = Form::along(line[kFirst + i], u);
  transpose<kCount>(row, column);
  for (int k = 0; k < 8; ++k) store<kCount>(out + k * kWidth + kFirst, column[k]);
  if constexpr (kFirst + 8 < kWidth) pack_eight_units<Form, kWidth, kFirst + 8>(line, u, out);
}

// The part of the next panel's lines that is as far along the depth, into the second cache: the
// processor doesn't follow so many lines at once.
template <class Form, int kWidth>
[[gnu::always_inline]] inline void fetch_next_panel(const typename Form::Element* const* line,
                                                    std::int64_t stride, std::int64_t u) {
  constexpr std::int64_t kUnitsOfLine = 64 / (Form::kPerUnit * sizeof(typename Form::Element));
  if (u % kUnitsOfLine != 0) return;
  for (int i = 0; i < kWidth; ++i) {
    __builtin_prefetch(line[i] + kWidth * stride + u * Form::kPerUnit, 0, 2);
  }
}

template <class Form, int kWidth>
void pack_along(const void* first, std::int64_t stride, std::int64_t count, std::int64_t depth,
                float* panels) {
  const auto* in = static_cast<const typename Form::Element*>(first);
  const std::int64_t units = num_units(Form::kDType, Form::kUnits, depth);
  const std::int64_t whole = depth / (8 * Form::kPerUnit) * 8;
  for (std::int64_t begin = 0; begin < count; begin += kWidth, panels += units * kWidth) {
    // Beyond the last line stands the last once more.
    const typename Form::Element* line[kWidth];
    for (int i = 0; i < kWidth; ++i) line[i] = in + std::min(begin + i, count - 1) * stride;
    const bool is_followed = begin + 2 * kWidth <= count;
    for (std::int64_t u = 0; u < whole; u += 8) {
      if (is_followed) fetch_next_panel<Form, kWidth>(line, stride, u);
      pack_eight_units<Form, kWidth>(line, u, panels + u * kWidth);
    }
    for (std::int64_t u = whole; u < units; ++u) {
      for (int i = 0; i < kWidth; ++i) panels[u * kWidth + i] = Form::one(line[i], 1, u, depth);
    }
  }
}

// A unit of 32 bits of sixteen columns, as one of the panel's or, of pairs that become floats, two.
template <class Form>
void put_interleaved(const std::uint32_t* unit, std::int64_t width, float* out) {
  if constexpr (std::is_same_v<Form, SwappedBF16>) {
    for (int i = 0; i < kInterleaved; ++i) {
      out[i] = std::bit_cast<float>(unit[i] & 0xffff0000u);
      out[width + i] = std::bit_cast<float>(unit[i] << 16);
    }
  } else {
    std::memcpy(out, unit, kInterleaved * sizeof(float));
  }
}

template <class Form, int kWidth>
void pack_interleaved(const void* first, std::int64_t stride, std::int64_t count,
                      std::int64_t depth, float* panels) {
  constexpr std::int64_t kPerUnit = kPerInterleavedUnit<typename Form::Element>;
  constexpr std::int64_t kPut = std::is_same_v<Form, SwappedBF16> ? 2 : 1;  // of a panel's units
  const auto* in = static_cast<const std::uint32_t*>(first);
  const std::int64_t units = depth / kPerUnit, line = stride / kPerUnit;
  for (std::int64_t begin = 0; begin < count; begin += kWidth, panels += kPut * units * kWidth) {
    for (std::int64_t u = 0; u < units; ++u) {
      for (std::int64_t i = 0; i < kWidth; i += kInterleaved) {
        put_interleaved<Form>(in + (begin + i) * line + u * kInterleaved, kWidth,
                              panels + kPut * u * kWidth + i);
      }
    }
  }
}

// Whole sixteens, of types that have such matrices.
template <class Form, int kWidth>
constexpr Pack interleaved_packing() {
  if constexpr (kWidth % kInterleaved == 0 && !std::is_same_v<Form, WidenedF16>) {
    return pack_interleaved<Form, kWidth>;
  }
  return nullptr;
}

// Lines lie far apart, so the processor doesn't see which comes next.
constexpr std::int64_t kLinesAhead = 8;
template <class T>
void fetch_line(const T* line, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(line + i);
}

// Row u of one panel, with `left` columns from x to the matrix's end.
template <class Form, int kWidth, int kFirst = 0>
void pack_unit(const typename Form::Element* x, std::int64_t step, std::int64_t left,
               std::int64_t u, std::int64_t depth, bool is_last, float* out) {
  constexpr int kCount = std::min(8, kWidth - kFirst);
  if (kFirst + 8 <= left && !(kCount == 6 && is_last)) {
    store<kCount>(out + kFirst, Form::across(x + kFirst, step, u, depth));
  } else {
    for (int i = kFirst; i < kFirst + kCount; ++i) {
      out[i] = i < left ? Form::one(x + i, step, u, depth) : 0.0f;
    }
  }
  if constexpr (kFirst + 8 < kWidth) {
    pack_unit<Form, kWidth, kFirst + 8>(x, step, left, u, depth, is_last, out);
  }
}

template <class Form, int kWidth>
void pack_across(const void* first, std::int64_t stride, std::int64_t count, std::int64_t depth,
                 float* panels) {
  const auto* in = static_cast<const typename Form::Element*>(first);
  const std::int64_t units = num_units(Form::kDType, Form::kUnits, depth);
  for (std::int64_t u = 0; u < units; ++u) {
    for (int i = 0; i < Form::kPerUnit; ++i) {
      fetch_line(in + ((u + kLinesAhead) * Form::kPerUnit + i) * stride, count);
    }
    float* out = panels + u * kWidth;
    for (std::int64_t begin = 0; begin < count; begin += kWidth, out += units * kWidth) {
      pack_unit<Form, kWidth>(in + begin, stride, count - begin, u, depth, u + 1 == units, out);
    }
  }
}

template <class Form>
Packing packing_of(int width) {
  switch (width) {
    case 6:
      return {pack_along<Form, 6>, pack_across<Form, 6>};
    case 12:
      return {pack_along<Form, 12>, pack_across<Form, 12>};
    case 16:
      return {pack_along<Form, 16>, pack_across<Form, 16>, interleaved_packing<Form, 16>()};
    case 32:
      return {pack_along<Form, 32>, pack_across<Form, 32>, interleaved_packing<Form, 32>()};
    default:
      SHERD_CHECK(false, "panels of width {}", width);
      __builtin_unreachable();
  }
}

Packing packing(DType dtype, Units units, int width) {
  switch (dtype) {
    case DType::kF32:
      return packing_of<Floats>(width);
    case DType::kF16:
      return packing_of<WidenedF16>(width);
    case DType::kBF16:
      if (units == Units::kFloats) return packing_of<SwappedBF16>(width);
      if (units == Units::kPairs) return packing_of<PairsOfBF16<Units::kPairs>>(width);
      return packing_of<PairsOfBF16<Units::kTiles>>(width);
    default:
      SHERD_CHECK(false, "panels of {}", name_of(dtype));
      __builtin_unreachable();
  }
}

// The left matrix of AMX's tiles: 32 rows by 16 units at a time, [units / 16][32][16]. A row's 16
// units are 32 elements, as they lie in memory.
constexpr std::int64_t kTileUnits = 16, kTileRows = 32;
using Pairs = PairsOfBF16<Units::kTiles>;

void pack_tiles_along(const void* first, std::int64_t stride, std::int64_t count,
                      std::int64_t depth, float* panels) {
  const auto* in = static_cast<const BFloat16*>(first);
  const std::int64_t units = num_units(DType::kBF16, Units::kTiles, depth);
  for (std::int64_t begin = 0; begin < count; begin += kTileRows, panels += units * kTileRows) {
    for (std::int64_t i = 0; i < kTileRows; ++i) {
      const BFloat16* line = in + std::min(begin + i, count - 1) * stride;
      for (std::int64_t u = 0; u < units; u += kTileUnits) {
        float* out = panels + (u * kTileRows) + i * kTileUnits;
        const std::int64_t left = std::min(2 * kTileUnits, depth - 2 * u);
        if (left < 2 * kTileUnits) std::fill_n(out, kTileUnits, 0.0f);
        std::memcpy(out, line + 2 * u, static_cast<std::size_t>(left) * sizeof(BFloat16));
      }
    }
  }
}

// Eight rows by eight units from x, of which `left` rows are there.
void pack_8x8(const BFloat16* x, std::int64_t step, std::int64_t left, std::int64_t u,
              std::int64_t depth, float* out) {
  Float8 unit[8], row[8];
  for (int k = 0; k < 8; ++k) {
    if (left >= 8) {
      unit[k] = Pairs::across(x, step, u + k, depth);
      continue;
    }
    unit[k] = Float8{};
    for (int i = 0; i < left; ++i) unit[k][i] = Pairs::one(x + i, step, u + k, depth);
  }
  transpose<8>(unit, row);
  for (int i = 0; i < 8; ++i) store8(out + i * kTileUnits, row[i]);
}

void pack_tiles_across(const void* first, std::int64_t stride, std::int64_t count,
                       std::int64_t depth, float* panels) {
  const auto* in = static_cast<const BFloat16*>(first);
  const std::int64_t units = num_units(DType::kBF16, Units::kTiles, depth);
  for (std::int64_t begin = 0; begin < count; begin += kTileRows, panels += units * kTileRows) {
    for (std::int64_t u = 0; u < units; u += 8) {
      float* out = panels + u / kTileUnits * kTileUnits * kTileRows + u % kTileUnits;
      for (std::int64_t i = 0; i < kTileRows; i += 8) {
        pack_8x8(in + begin + i, stride, count - begin - i, u, depth, out + i * kTileUnits);
      }
    }
  }
}

}  // namespace

Packing packing_of_rows(DType dtype, const TileKernels& tiles) {
  if (tiles.units == Units::kTiles) return {pack_tiles_along, pack_tiles_across};
  return packing(dtype, tiles.units, tiles.rows);
}

Packing packing_of_columns(DType dtype, const TileKernels& tiles) {
  return packing(dtype, tiles.units, tiles.columns);
}

}  // namespace sherd::kernels::cpu
