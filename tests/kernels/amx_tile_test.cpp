// AMX's tile loop and its packing on a model of the tile instructions, so that any processor tests
// them; where there is AMX, the instructions themselves are in matmul_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul/amx/tile_body.h"
#include "kernels/cpu/matmul/pack.h"
#include "tests/support/devices/matmul_model.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels::cpu {
namespace {

using test::OwnedTensor;

// TILEZERO, TILELOADD, TDPBF16PS and TILESTORED by the pseudocode of Intel's manual (SDM vol. 2), on
// tiles of 16 rows of 64 bytes. None of the numbers here is subnormal.
struct Model {
  inline static float tile[8][16][16];

  static float half(float pair, int odd) {
    std::uint32_t bits;
    std::memcpy(&bits, &pair, sizeof bits);
    bits = odd ? bits & 0xffff0000u : bits << 16;
    std::memcpy(&pair, &bits, sizeof bits);
    return pair;
  }
  static void load(int t, const float* from, int stride) {
    for (int row = 0; row < 16; ++row) std::memcpy(tile[t][row], from + row * stride, 64);
  }
  static void dot(int c, int a, int b) {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        float even = 0.0f, odd = 0.0f;
        for (int k = 0; k < 16; ++k) {
          even = std::fma(half(tile[a][m][k], 0), half(tile[b][k][n], 0), even);
          odd = std::fma(half(tile[a][m][k], 1), half(tile[b][k][n], 1), odd);
        }
        tile[c][m][n] = tile[c][m][n] + (even + odd);
      }
    }
  }

  static void zero_sums() { std::memset(tile, 0, 4 * sizeof tile[0]); }
  static void load_rows(const float* a, int stride) {
    load(4, a, stride);
    load(5, a + 16 * stride, stride);
  }
  static void load_columns(const float* b, int stride) {
    load(6, b, stride);
    load(7, b + 16, stride);
  }
  static void add_dots() {
    for (int t = 0; t < 4; ++t) dot(t, 4 + t / 2, 6 + t % 2);
  }
  static void store_sums(float* sums, int stride) {
    for (int t = 0; t < 4; ++t) {
      for (int row = 0; row < 16; ++row) {
        std::memcpy(sums + (t / 2 * 16 + row) * stride + t % 2 * 16, tile[t][row], 64);
      }
    }
  }
};

constexpr TileKernels kTiles{.rows = 32,
                             .columns = 32,
                             .units = Units::kTiles,
                             .multiply = nullptr,
                             .multiply_packed = multiply_amx_tile<Model>,
                             .begin = nullptr,
                             .end = nullptr};

struct Sizes {
  std::int64_t rows, columns, depth;
};

test::Values transposed(const test::Values& x, std::int64_t rows, std::int64_t columns) {
  test::Values out(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

// All tiles of one piece of the depth.
OwnedTensor multiply(const Sizes& s, const OwnedTensor& a, bool turn_a, const OwnedTensor& b,
                     bool turn_b) {
  const std::int64_t units = num_units(DType::kBF16, Units::kTiles, s.depth);
  const auto panels = [&](std::int64_t count) {
    return OwnedTensor(DType::kF32, (count + 31) / 32 * 32 * units);  // of NaN until packed
  };
  OwnedTensor a_panels = panels(s.rows), b_panels = panels(s.columns);
  const Packing rows = packing_of_rows(DType::kBF16, kTiles);
  const Packing columns = packing_of_columns(DType::kBF16, kTiles);
  (turn_a ? rows.across : rows.along)(a.tensor().data, turn_a ? s.rows : s.depth, s.rows, s.depth,
                                      a_panels.tensor().as<float>());
  (turn_b ? columns.along : columns.across)(b.tensor().data, turn_b ? s.depth : s.columns,
                                            s.columns, s.depth, b_panels.tensor().as<float>());
  OwnedTensor c(DType::kF32, s.rows * s.columns);
  for (std::int64_t i = 0; i < s.rows; i += 32) {
    for (std::int64_t j = 0; j < s.columns; j += 32) {
      kTiles.multiply_packed({.depth = units,
                              .a = a_panels.tensor().as<float>() + i * units,
                              .b = b_panels.tensor().as<float>() + j * units,
                              .c = c.tensor().as<float>() + i * s.columns + j,
                              .c_stride = s.columns},
                             static_cast<int>(std::min<std::int64_t>(32, s.rows - i)),
                             static_cast<int>(std::min<std::int64_t>(32, s.columns - j)));
    }
  }
  return c;
}

TEST(AmxTile, OnAModelOfTheInstructionsIsTheScalarModelInEitherLayout) {
  for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{32, 32, 32}, Sizes{33, 40, 31}, Sizes{70, 9, 100},
                         Sizes{40, 70, 333}}) {
    const test::Values a = test::random_values(s.rows * s.depth, 1);
    const test::Values b = test::random_values(s.depth * s.columns, 2);
    const OwnedTensor plain_a(DType::kBF16, a), plain_b(DType::kBF16, b);
    const OwnedTensor turned_a(DType::kBF16, transposed(a, s.rows, s.depth));
    const OwnedTensor turned_b(DType::kBF16, transposed(b, s.depth, s.columns));
    OwnedTensor expected(DType::kF32, s.rows * s.columns);
    test::multiply({.rows = s.rows,
                    .columns = s.columns,
                    .depth = s.depth,
                    .a = plain_a,
                    .b = plain_b,
                    .bias = {},
                    .amx = true},
                   expected);
    EXPECT_TRUE(test::same_bits(multiply(s, plain_a, false, plain_b, false), expected)) << s.depth;
    EXPECT_TRUE(test::same_bits(multiply(s, turned_a, true, turned_b, true), expected)) << s.depth;
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
