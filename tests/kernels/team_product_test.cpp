#include "kernels/cpu/team_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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

Floats transposed(const Floats& x, std::int64_t rows, std::int64_t columns) {
  Floats out(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

// Either factor as it is and as its transpose.
struct Factors {
  explicit Factors(const Sizes& s)
      : a(numbers(s.rows * s.depth, 0.1)),
        b(numbers(s.depth * s.columns, 2)),
        a_t(transposed(a, s.rows, s.depth)),
        b_t(transposed(b, s.depth, s.columns)) {}
  Floats a, b, a_t, b_t;
};

enum class Onto { kNothing, kBias, kOutput };

Floats product(const Sizes& s, const Factors& f, bool turn_a, bool turn_b, Onto onto,
               int num_threads = 2) {
  ThreadTeam team(num_threads);
  const Floats bias = numbers(s.columns, 7);
  Floats c = numbers(s.rows * s.columns, 5);
  const std::int64_t floats = team_product_floats(s.rows, s.columns, s.depth, num_threads);
  Floats workspace(static_cast<std::size_t>(floats) + 16, std::nanf(""));
  auto* aligned =
      reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64);
  multiply(team,
           {.rows = s.rows,
            .columns = s.columns,
            .depth = s.depth,
            .a = turn_a ? GemmOperand{f.a_t.data(), s.rows, true}
                        : GemmOperand{f.a.data(), s.depth, false},
            .b = turn_b ? GemmOperand{f.b_t.data(), s.depth, true}
                        : GemmOperand{f.b.data(), s.columns, false},
            .c = c.data(),
            .bias = onto == Onto::kBias ? bias.data() : nullptr,
            .add = onto == Onto::kOutput},
           aligned);
  return c;
}

std::vector<double> expected(const Sizes& s, const Factors& f, Onto onto) {
  const Floats bias = numbers(s.columns, 7), before = numbers(s.rows * s.columns, 5);
  std::vector<double> c(before.size(), 0.0);
  for (std::int64_t i = 0; i < s.rows; ++i) {
    double* row = &c[i * s.columns];
    for (std::int64_t j = 0; j < s.columns && onto != Onto::kNothing; ++j) {
      row[j] = onto == Onto::kBias ? bias[j] : before[i * s.columns + j];
    }
    for (std::int64_t k = 0; k < s.depth; ++k) {
      const double a = f.a[i * s.depth + k];
      for (std::int64_t j = 0; j < s.columns; ++j) row[j] += a * f.b[k * s.columns + j];
    }
  }
  return c;
}

void expect_close(const Floats& c, const std::vector<double>& sum, double tolerance) {
  double furthest = 0.0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double gap = std::abs(c[i] - sum[i]);
    if (!(gap <= furthest)) furthest = gap;  // a NaN stays
  }
  EXPECT_LE(furthest, tolerance);
}

// Parts of a tile, beside whole ones, and in the last two several pieces: of the rows for any
// number of threads, of the columns, of the depth.
const Sizes kSizes[] = {{1, 1, 1},     {6, 16, 8},    {7, 17, 9},     {8, 15, 7},
                        {13, 40, 300}, {14, 129, 33}, {50, 260, 801}, {160, 1563, 12}};

TEST(TeamProduct, IsTheProductForAnySizesAndEitherLayoutOfItsFactors) {
  for (const Sizes& s : kSizes) {
    const Factors f(s);
    for (const Onto onto : {Onto::kNothing, Onto::kBias, Onto::kOutput}) {
      const std::vector<double> sum = expected(s, f, onto);
      for (const bool turn_a : {false, true}) {
        for (const bool turn_b : {false, true}) {
          SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << ", depth " << s.depth
                                          << ", " << turn_a << turn_b << static_cast<int>(onto));
          expect_close(product(s, f, turn_a, turn_b, onto), sum, 3e-7 * (4.0 + s.depth));
        }
      }
    }
  }
}

TEST(TeamProduct, HasTheSameBitsOnAnyNumberOfThreadsAndInEitherLayout) {
  for (const Sizes& s : kSizes) {
    const Factors f(s);
    const Floats one = product(s, f, false, false, Onto::kBias, 1);
    for (const int num_threads : {2, 3, 5}) {
      const Floats more = product(s, f, true, num_threads == 2, Onto::kBias, num_threads);
      EXPECT_EQ(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)), 0)
          << s.rows << " x " << s.columns << ", " << num_threads << " threads";
    }
  }
}

TEST(TeamProduct, ARowsBitsFollowTheDepthAlone) {
  const Sizes whole{50, 260, 801}, part{11, 260, 801};
  Factors f(whole);
  const Floats all = product(whole, f, false, false, Onto::kNothing);
  Factors first = f;
  first.a.resize(part.rows * part.depth);
  const Floats some = product(part, first, false, true, Onto::kNothing);
  EXPECT_EQ(std::memcmp(all.data(), some.data(), some.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace sherd::kernels::cpu
