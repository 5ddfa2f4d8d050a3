#include "kernels/cpu/matmul/panels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

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
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << ", depth " << s.depth
                                      << ", " << name_of(isa));
      const Floats a = numbers(s.rows * s.depth, 0.1), b = numbers(s.depth * s.columns, 2);
      const Floats a_t = transposed(a, s.rows, s.depth), b_t = transposed(b, s.depth, s.columns);
      const Floats before = numbers(s.rows * s.columns, 5);
      for (const bool turned : {false, true}) {
        Floats panels(panel_floats(s.depth, s.columns), NAN), c = before;
        if (turned) {
          pack_columns_of_transpose({b_t.data(), s.depth}, s.depth, s.columns, panels.data());
        } else {
          pack_columns({b.data(), s.columns}, s.depth, s.columns, panels.data());
        }
        multiply_panels({.first = {.depth = s.depth,
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

TEST(Panels, WhatIsNotTheMatmulsIsLeftAlone) {
  const std::int64_t depth = 5;
  const Floats a = numbers(12 * depth, 1), b = numbers(depth * 32, 3);
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    Floats panels(panel_floats(depth, 32));
    pack_columns({b.data(), 32}, depth, 32, panels.data());
    for (const std::int64_t rows : {1, 5, 11}) {
      for (const std::int64_t columns : {1, 7, 16, 17, 31}) {
        Floats c(13 * 33, -7.0f);
        multiply_panels({.first = {.depth = depth,
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
