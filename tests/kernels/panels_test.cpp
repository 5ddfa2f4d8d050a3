#include "kernels/cpu/matmul/panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/cpu/convert.h"

namespace sherd::kernels::cpu {
namespace {

using Floats = std::vector<float>;

// Values that differ and whose products round.
Floats numbers(std::int64_t count, double seed) {
  Floats values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(seed + 1.7 * static_cast<double>(i)));
  }
  return values;
}

struct Sizes {
  std::int64_t rows, columns, depth;
};
// Whole tiles, parts of one, and a depth of more than one piece.
const Sizes kSizes[] = {{1, 1, 1}, {12, 32, 8}, {7, 17, 9}, {13, 40, 300}, {5, 33, 513}};

// c before, then a piece of 256 of the depth at a time: scale * a chain of fused multiply-adds.
Floats expected(const Sizes& s, const Floats& a, const Floats& b, const Floats& c, float scale) {
  Floats out = c;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < s.columns; ++j) {
      for (std::int64_t k = 0; k < s.depth;) {
        float sum = 0.0f;
        for (const std::int64_t end = std::min(s.depth, k + 256); k < end; ++k) {
          sum = std::fma(a[i * s.depth + k], b[k * s.columns + j], sum);
        }
        out[i * s.columns + j] += scale * sum;
      }
    }
  }
  return out;
}

Floats transposed(const Floats& x, std::int64_t rows, std::int64_t columns) {
  Floats out(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

TEST(Panels, MultiplyInPiecesOf256OnEachInstructionSetForAnySizesAndLayouts) {
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    const Panels form(DType::kF32);
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << ", depth " << s.depth
                                      << ", " << name_of(isa));
      const Floats a = numbers(s.rows * s.depth, 0.1), b = numbers(s.depth * s.columns, 2);
      const Floats a_t = transposed(a, s.rows, s.depth), b_t = transposed(b, s.depth, s.columns);
      const Floats before = numbers(s.rows * s.columns, 5);
      for (const bool turned : {false, true}) {
        Floats panels(panel_floats(s.depth, s.columns), NAN), c = before;
        if (turned) {
          form.pack_transpose({b_t.data(), s.depth}, s.depth, s.columns, panels.data());
        } else {
          form.pack({b.data(), s.columns}, s.depth, s.columns, panels.data());
        }
        form.multiply({.first = {.depth = s.depth,
                                 .a = turned ? a_t.data() : a.data(),
                                 .a_row = turned ? 1 : s.depth,
                                 .a_depth = turned ? s.rows : 1,
                                 .b = panels.data(),
                                 .c = c.data(),
                                 .c_stride = s.columns,
                                 .scale = 0.3f,
                                 .add = true},
                       .b_depth = s.depth},
                      s.rows, s.columns);
        EXPECT_EQ(c, expected(s, a, b, before, 0.3f));
      }
    }
  }
}

// Pairs of bf16: of each the odd product, then the even one, of values that are rounded before; pieces as above.
Floats expected_of_pairs(const Sizes& s, const Floats& a, const Floats& b) {
  const auto element = [](const Floats& x, std::int64_t i) {
    return static_cast<float>(BFloat16(x[static_cast<std::size_t>(i)]));
  };
  Floats out(static_cast<std::size_t>(s.rows * s.columns), 0.0f);
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < s.columns; ++j) {
      for (std::int64_t k = 0; k < s.depth;) {
        float sum = 0.0f;
        for (const std::int64_t end = std::min(s.depth, k + 256); k < end; k += 2) {
          for (const std::int64_t own : {k + 1, k}) {
            if (own >= end) continue;
            sum = std::fma(element(a, i * s.depth + own), element(b, own * s.columns + j), sum);
          }
        }
        out[i * s.columns + j] += sum;
      }
    }
  }
  return out;
}

std::vector<BFloat16> stored(const Floats& x) {
  std::vector<BFloat16> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = BFloat16(x[i]);
  return out;
}

// Every float that differs in its upper bits or in how it is rounded, and NaN with few bits or all: a NaN stays one.
TEST(Panels, RoundToBf16AsTheScalarDoesAlsoNaNAndTakeSubnormalsForZero) {
  Floats values;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 0x3fff) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (const std::uint32_t bits : {0x007fffffu, 0x007f8000u, 0x00800000u, 0x7f800000u,
                                     0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu}) {
      values.push_back(std::bit_cast<float>(sign | bits));
    }
  }
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<BFloat16> narrowed(values.size());
  narrow(values.data(), narrowed.data(), count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrowed[i].bits, BFloat16(values[i]).bits)
        << std::bit_cast<std::uint32_t>(values[i]);
  }
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    const Panels form(DType::kBF16);
    Floats turned(2 * values.size());  // a row of pairs, or two rows of floats
    form.turn(values.data(), values.data(), count, turned.data(), count);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool subnormal = std::fpclassify(values[i]) == FP_SUBNORMAL;
      const std::uint32_t bits =
          subnormal ? (std::signbit(values[i]) ? 0x8000u : 0u) : BFloat16(values[i]).bits;
      const bool pairs = form.units(2) == 1;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(turned[i]), bits << 16 | (pairs ? bits : 0u));
      if (!pairs) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(turned[values.size() + i]), bits << 16);
      }
    }
  }
}

// Of values so small that products, or the factors themselves, are below the smallest normal number.
TEST(Panels, OfBf16TakeSubnormalsForZeroOnEachInstructionSet) {
  const std::int64_t rows = 5, columns = 33, depth = 70;
  for (const float scale : {1e-38f, 3e-20f, 1e-19f}) {
    Floats a = numbers(rows * depth, 0.1), b = numbers(depth * columns, 2);
    for (float& value : a) value *= scale;
    for (float& value : b) value *= scale < 1e-30f ? 1.0f : scale;
    const auto stored_a = stored(a), stored_b = stored(b);
    std::vector<Floats> results;
    for (const Isa isa : available_isas()) {
      const ForcedIsa forced(isa);
      const Panels form(DType::kBF16);
      Floats panels(panel_floats(depth, columns)), copy(rows * depth);
      form.pack({stored_b.data(), columns}, depth, columns, panels.data());
      const MatrixView left = form.left({stored_a.data(), depth}, rows, depth, copy.data());
      Floats& c = results.emplace_back(rows * columns, 0x1p-126f);
      form.multiply({.first = {.depth = depth,
                               .a = left.data,
                               .a_row = left.stride,
                               .b = panels.data(),
                               .c = c.data(),
                               .c_stride = columns,
                               .scale = 0.7f,
                               .add = true},
                     .b_depth = depth},
                    rows, columns);
      for (const float value : c) EXPECT_NE(std::fpclassify(value), FP_SUBNORMAL) << name_of(isa);
      EXPECT_EQ(c, results.front()) << name_of(isa) << ", scale " << scale;
    }
  }
}

TEST(Panels, OfBf16AddTheOddOfAPairFirstOnEachInstructionSetHoweverTheLeftMatrixCameToBe) {
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    const Panels form(DType::kBF16);
    for (const Sizes& s : kSizes) {
      const Floats a = numbers(s.rows * s.depth, 0.1), b = numbers(s.depth * s.columns, 2);
      const auto stored_a = stored(a), stored_b = stored(b);
      const auto stored_b_t = stored(transposed(b, s.depth, s.columns));
      const Floats want = expected_of_pairs(s, a, b);
      Floats by_rows(panel_floats(s.depth, s.columns), NAN), turned = by_rows, one_by_one = by_rows;
      form.pack({stored_b.data(), s.columns}, s.depth, s.columns, by_rows.data());
      form.pack_transpose({stored_b_t.data(), s.depth}, s.depth, s.columns, turned.data());
      for (std::int64_t k = 0; k < s.depth; ++k) {
        form.put_row(&stored_b[k * s.columns], k, s.depth, s.columns, one_by_one.data());
      }
      Floats columns(panel_floats(s.depth, s.columns), NAN);
      for (std::int64_t j = 0; j < s.columns; ++j) {
        form.put_column(&stored_b_t[j * s.depth], j, s.depth, columns.data());
      }

      const std::int64_t stride = whole_pairs(s.depth);
      Floats copy(static_cast<std::size_t>(s.rows * stride), NAN), computed = copy;
      const MatrixView left = form.left({stored_a.data(), s.depth}, s.rows, s.depth, copy.data());
      for (std::int64_t i = 0; i < s.rows; ++i) {
        std::copy_n(&a[i * s.depth], s.depth, &computed[i * stride]);
        form.to_units(&computed[i * stride], s.depth);
      }
      const Floats a_t = transposed(a, s.rows, s.depth);
      Floats down(static_cast<std::size_t>(stride * s.rows), NAN);
      for (std::int64_t k = 0; k < s.depth; k += 2) {
        form.turn(&a_t[k * s.rows], k + 1 < s.depth ? &a_t[(k + 1) * s.rows] : nullptr, s.rows,
                  &down[form.units(k) * s.rows], s.rows);
      }
      struct Left {
        const char* name;
        const float* data;
        std::int64_t row, depth;
      };
      const Left lefts[] = {{"stored", left.data, left.stride, 1},
                            {"computed", computed.data(), stride, 1},
                            {"turned", down.data(), 1, s.rows}};
      for (const Left& of : lefts) {
        for (const Floats* panels : {&by_rows, &turned, &one_by_one, &columns}) {
          SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << ", depth " << s.depth
                                          << ", " << name_of(isa) << ", left matrix " << of.name);
          Floats c(want.size(), NAN);
          form.multiply({.first = {.depth = s.depth,
                                   .a = of.data,
                                   .a_row = of.row,
                                   .a_depth = of.depth,
                                   .b = panels->data(),
                                   .c = c.data(),
                                   .c_stride = s.columns},
                         .b_depth = s.depth},
                        s.rows, s.columns);
          EXPECT_EQ(c, want);
        }
      }
    }
  }
}

TEST(Panels, WhatIsNotTheMatmulsIsLeftAlone) {
  const std::int64_t depth = 5;
  const Floats a = numbers(12 * depth, 1), b = numbers(depth * 32, 3);
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    const Panels form(DType::kF32);
    Floats panels(panel_floats(depth, 32));
    form.pack({b.data(), 32}, depth, 32, panels.data());
    for (const std::int64_t rows : {1, 5, 11}) {
      for (const std::int64_t columns : {1, 7, 16, 17, 31}) {
        Floats c(13 * 33, -7.0f);
        form.multiply({.first = {.depth = depth,
                                 .a = a.data(),
                                 .a_row = depth,
                                 .b = panels.data(),
                                 .c = c.data(),
                                 .c_stride = 33},
                       .b_depth = depth},
                      rows, columns);
        for (std::int64_t i = 0; i < 13; ++i) {
          for (std::int64_t j = 0; j < 33; ++j) {
            ASSERT_EQ(c[i * 33 + j] == -7.0f, i >= rows || j >= columns) << i << " " << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
