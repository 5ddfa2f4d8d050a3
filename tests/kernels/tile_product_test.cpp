#include "kernels/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sherd::kernels::cpu {
namespace {

// Values that differ and whose products round.
std::vector<float> numbers(std::int64_t count, double seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(seed + 1.7 * static_cast<double>(i)));
  }
  return values;
}

struct Sizes {
  std::int64_t rows, columns, depth;
};
// Whole tiles, parts of one, and a depth of more than one piece.
const Sizes kSizes[] = {{1, 1, 1}, {6, 16, 8}, {7, 17, 9}, {13, 40, 300}, {5, 33, 513}};

// c before, then scale * a b + c, in double.
std::vector<double> expected(const Sizes& s, const std::vector<float>& a,
                             const std::vector<float>& b, const std::vector<float>& c,
                             double scale) {
  std::vector<double> out(c.begin(), c.end());
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < s.columns; ++j) {
      for (std::int64_t k = 0; k < s.depth; ++k) {
        out[i * s.columns + j] +=
            scale * static_cast<double>(a[i * s.depth + k]) * b[k * s.columns + j];
      }
    }
  }
  return out;
}

std::vector<float> transposed(const std::vector<float>& x, std::int64_t rows,
                              std::int64_t columns) {
  std::vector<float> out(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

TEST(TileProduct, IsTheProductForAnySizesAndEitherLayoutOfItsFactors) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << ", depth " << s.depth);
    const std::vector<float> a = numbers(s.rows * s.depth, 0.1),
                             b = numbers(s.depth * s.columns, 2);
    const std::vector<float> a_t = transposed(a, s.rows, s.depth);
    const std::vector<float> b_t = transposed(b, s.depth, s.columns);
    const std::vector<float> before = numbers(s.rows * s.columns, 5);
    const std::vector<double> sum = expected(s, a, b, before, 0.25);
    for (const bool turned : {false, true}) {
      std::vector<float> panels(panel_floats(s.depth, s.columns), NAN), c = before;
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
                                 .scale = 0.25f,
                                 .add = true},
                       .b_panel = s.depth * kTileColumns},
                      s.rows, s.columns);
      for (std::size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c[i], sum[i], 2e-5) << i;
    }
  }
}

// What lets callers cut a product anywhere.
TEST(TileProduct, GivesAnElementTheSameBitsInAWholeTileAndInAPart) {
  const std::int64_t depth = 300;
  const std::vector<float> a = numbers(6 * depth, 1), b = numbers(depth * 16, 3);
  std::vector<float> panels(panel_floats(depth, 16));
  pack_columns({b.data(), 16}, depth, 16, panels.data());
  const auto product = [&](std::int64_t rows, std::int64_t columns) {
    std::vector<float> c(6 * 16, 0.0f);
    multiply_panels({.first = {.depth = depth,
                               .a = a.data(),
                               .a_row = depth,
                               .b = panels.data(),
                               .c = c.data(),
                               .c_stride = 16},
                     .b_panel = depth * 16},
                    rows, columns);
    return c;
  };
  const std::vector<float> whole = product(6, 16);
  for (std::int64_t rows = 1; rows <= 6; ++rows) {
    for (const std::int64_t columns : {1, 7, 15}) {
      const std::vector<float> part = product(rows, columns);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < 16; ++j) {
          EXPECT_EQ(part[i * 16 + j], j < columns ? whole[i * 16 + j] : 0.0f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
