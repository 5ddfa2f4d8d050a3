#include "kernels/cpu/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/isa.h"
#include "tests/support/devices/matmul_model.h"
#include "tests/support/values/tensors.h"

// M rows, N columns, L depth.
namespace sherd::kernels::cpu {
namespace {

using test::OwnedTensor;
using test::Values;

struct MatmulSizes {
  std::int64_t rows, columns, depth;
};
// Parts of a tile, and whole ones; several pieces: of the depth, of the columns; and more rows
// and columns than a 16-bit output keeps sums of. 48 threads are more than most have tasks for.
const MatmulSizes kMatmulSizes[] = {
    {1, 1, 1},       {1, 77, 1601},   {1, 200, 40},   {12, 32, 8},     {7, 17, 9},
    {13, 40, 301},   {14, 129, 33},   {25, 33, 1543}, {160, 1563, 12}, {1030, 7, 770},
    {3, 1100, 770},  {1070, 20, 770}, {26, 70, 3100}, {50, 260, 801},  {40, 1100, 770},
    {30, 1600, 801}, {1070, 200, 770}};

Values transposed(const Values& x, std::int64_t rows, std::int64_t columns) {
  Values out(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * rows + i] = x[i * columns + j];
  }
  return out;
}

// Either factor as it is and as its transpose.
struct Factors {
  Factors(DType dtype, const MatmulSizes& s, double scale = 1.0)
      : sizes(s),
        a(dtype, test::random_values(s.rows * s.depth, 1, scale)),
        b(dtype, test::random_values(s.depth * s.columns, 2, scale)),
        a_t(dtype, transposed(a.values(), s.rows, s.depth)),
        b_t(dtype, transposed(b.values(), s.depth, s.columns)),
        bias(dtype, test::random_values(s.columns, 3)),
        before(test::random_values(s.rows * s.columns, 4)) {}

  DType dtype() const { return a.tensor().dtype; }
  MatmulSizes sizes;
  OwnedTensor a, b, a_t, b_t, bias;
  Values before;  ///< initial values of c
};

enum class Onto { kNothing, kBias, kOutput };

struct How {
  DType c_dtype = DType::kF32;
  Onto onto = Onto::kNothing;
  bool turn_a = false, turn_b = false;
  int num_threads = 1;
};

const void* at(const OwnedTensor& matrix, std::int64_t element) {
  return static_cast<const char*>(matrix.tensor().data) +
         element * static_cast<std::int64_t>(size_of(matrix.tensor().dtype));
}

// Rows [row, row + part.rows), columns [column, ...) and depth [k, ...) of the whole, as a matmul of
// its own.
OwnedTensor product(const Factors& f, const How& how, const MatmulSizes& part, std::int64_t row = 0,
                    std::int64_t column = 0, std::int64_t k = 0,
                    const OwnedTensor* onto = nullptr) {
  ThreadTeam team(how.num_threads);
  const MatmulSizes& s = f.sizes;
  Values before;
  for (std::int64_t i = 0; i < part.rows; ++i) {
    for (std::int64_t j = 0; j < part.columns; ++j) {
      before.push_back(f.before[(row + i) * s.columns + column + j]);
    }
  }
  OwnedTensor c = onto ? *onto : OwnedTensor(how.c_dtype, before);
  OwnedTensor workspace =
      test::workspace(matmul_workspace_bytes(part.rows, part.columns, part.depth, how.c_dtype));
  matmul(team,
         {.rows = part.rows,
          .columns = part.columns,
          .depth = part.depth,
          .dtype = f.dtype(),
          .a = how.turn_a ? MatmulOperand{at(f.a_t, k * s.rows + row), s.rows, true}
                          : MatmulOperand{at(f.a, row * s.depth + k), s.depth, false},
          .b = how.turn_b ? MatmulOperand{at(f.b_t, column * s.depth + k), s.depth, true}
                          : MatmulOperand{at(f.b, k * s.columns + column), s.columns, false},
          .c = c,
          .bias = how.onto == Onto::kBias ? at(f.bias, column) : nullptr,
          .add = how.onto == Onto::kOutput || onto},
         workspace);
  return c;
}
OwnedTensor product(const Factors& f, const How& how) {
  return product(f, how, f.sizes);
}

// What scalar code computes by the rule.
OwnedTensor model(const Factors& f, const How& how) {
  test::MatmulModel m{.rows = f.sizes.rows,
                      .columns = f.sizes.columns,
                      .depth = f.sizes.depth,
                      .a = f.a,
                      .b = f.b,
                      .bias = how.onto == Onto::kBias ? ConstTensor(f.bias) : ConstTensor(),
                      .add = how.onto == Onto::kOutput,
                      .amx = isa() == Isa::kAmx};
  OwnedTensor c(how.c_dtype, f.before);
  test::multiply(m, c);
  return c;
}

std::string describe(const MatmulSizes& s, const How& how) {
  return fmt::format("{} x {}, depth {}, into {}, onto {}, turned {}{}, {} threads, {}", s.rows,
                     s.columns, s.depth, name_of(how.c_dtype), static_cast<int>(how.onto),
                     how.turn_a, how.turn_b, how.num_threads, name_of(isa()));
}

std::vector<DType> types_beside(DType dtype) {
  return dtype == DType::kF32 ? std::vector{DType::kF32, DType::kBF16}
                              : std::vector{DType::kF32, dtype};
}

class MatmulOnEachIsa : public testing::TestWithParam<DType> {
 protected:
  // Calls `test` under every instruction set of this machine.
  template <class Test>
  void on_each_isa(const Test& run) {
    for (const Isa isa : available_isas()) {
      const ForcedIsa forced(isa);
      SCOPED_TRACE(name_of(isa));
      run();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, MatmulOnEachIsa, test::compute_types(), test::type_name);

TEST_P(MatmulOnEachIsa, IsAScalarModelOfTheInstructionsBitForBit) {
  on_each_isa([&] {
    for (const MatmulSizes& s : kMatmulSizes) {
      if (s.rows * s.columns * s.depth > 8'000'000) continue;  // the model takes its time
      const Factors f(GetParam(), s);
      for (const DType c_dtype : types_beside(GetParam())) {
        for (const Onto onto : {Onto::kNothing, Onto::kBias, Onto::kOutput}) {
          for (const bool turn_b : {false, true}) {  // turned, one row has a way of its own
            const How how{.c_dtype = c_dtype, .onto = onto, .turn_b = turn_b};
            EXPECT_TRUE(test::same_bits(product(f, how), model(f, how))) << describe(s, how);
          }
        }
      }
    }
  });
}

// bf16 has the exponents of f32: products and sums reach below the smallest normal number, which
// the instructions take for zero.
TEST_P(MatmulOnEachIsa, TreatsSubnormalsAsTheModel) {
  on_each_isa([&] {
    for (const double scale : {1e-38, 3e-20, 1e-19, 2e-7}) {
      const Factors f(GetParam(), {13, 40, 301}, scale);
      const How how{};
      EXPECT_TRUE(test::same_bits(product(f, how), model(f, how))) << scale;
    }
  });
}

TEST_P(MatmulOnEachIsa, HasTheSameBitsOnAnyNumberOfThreadsAndInEitherLayout) {
  on_each_isa([&] {
    for (const MatmulSizes& s : kMatmulSizes) {
      const Factors f(GetParam(), s);
      for (const DType c_dtype : types_beside(GetParam())) {
        const OwnedTensor one = product(f, {.c_dtype = c_dtype, .onto = Onto::kBias});
        for (const int num_threads : {1, 2, 4, 48}) {
          const How how{c_dtype, Onto::kBias, num_threads<4, num_threads> 1, num_threads};
          EXPECT_TRUE(test::same_bits(product(f, how), one)) << describe(s, how);
        }
      }
    }
  });
}

TEST_P(MatmulOnEachIsa, GivesAnElementTheSameBitsAloneAndInsideALargerMatmul) {
  on_each_isa([&] {
    const MatmulSizes s{85, 140, 1543};
    const Factors f(GetParam(), s);
    for (const DType c_dtype : types_beside(GetParam())) {
      const How how{.c_dtype = c_dtype, .onto = Onto::kBias};
      const Values whole = product(f, how).values();
      struct Part {
        std::int64_t row, rows, column, columns;
      };
      for (const Part& p : {Part{0, 1, 0, 140}, Part{84, 1, 3, 1}, Part{5, 13, 31, 33},
                            Part{11, 74, 100, 40}, Part{3, 80, 139, 1}}) {
        for (const int num_threads : {1, 2, 4}) {
          How parts = how;
          parts.num_threads = num_threads;
          const Values alone =
              product(f, parts, {p.rows, p.columns, s.depth}, p.row, p.column).values();
          How turned = parts;
          turned.turn_a = turned.turn_b = true;
          EXPECT_EQ(product(f, turned, {p.rows, p.columns, s.depth}, p.row, p.column).values(),
                    alone)
              << describe(s, turned);
          turned.turn_a = false;  // a row has a way of its own
          EXPECT_EQ(product(f, turned, {p.rows, p.columns, s.depth}, p.row, p.column).values(),
                    alone)
              << describe(s, turned);
          Values inside;
          for (std::int64_t i = 0; i < p.rows; ++i) {
            for (std::int64_t j = 0; j < p.columns; ++j) {
              inside.push_back(whole[(p.row + i) * s.columns + p.column + j]);
            }
          }
          EXPECT_EQ(alone, inside) << p.row << " " << p.column << " " << describe(s, parts);
        }
      }
    }
  });
}

// What makes a cut of the depth exact: the second half continues the first one's sum.
TEST_P(MatmulOnEachIsa, HalvesOfTheDepthOneAfterTheOtherHaveTheBitsOfTheWhole) {
  on_each_isa([&] {
    for (const std::int64_t depth : {1536, 1376, 6144}) {
      const MatmulSizes s{9, 35, depth};
      const Factors f(GetParam(), s);
      const MatmulSizes half{s.rows, s.columns, depth / 2};
      const OwnedTensor first = product(f, {}, half);
      EXPECT_TRUE(test::same_bits(product(f, {}, half, 0, 0, depth / 2, &first), product(f, {})))
          << depth;
    }
  });
}

TEST_P(MatmulOnEachIsa, MatchesTheOracle) {
  on_each_isa([&] {
    for (const MatmulSizes& s : kMatmulSizes) {
      const Factors f(GetParam(), s);
      const OwnedTensor c = product(f, {.onto = Onto::kOutput});
      const Values a = f.a.values(), b = f.b.values();
      Values sum = OwnedTensor(DType::kF32, f.before).values();
      for (std::int64_t i = 0; i < s.rows; ++i) {
        for (std::int64_t k = 0; k < s.depth; ++k) {
          for (std::int64_t j = 0; j < s.columns; ++j) {
            sum[i * s.columns + j] += a[i * s.depth + k] * b[k * s.columns + j];
          }
        }
      }
      EXPECT_TRUE(test::close(c, sum, test::rounded_once(DType::kF32)))
          << describe(s, {.onto = Onto::kOutput});
    }
  });
}

TEST(Matmul, PiecesOfTheDepthAreEvenAtMost768AndThoseOfItsHalves) {
  EXPECT_EQ(matmul_depth_piece(1), 1);
  EXPECT_EQ(matmul_depth_piece(768), 768);
  EXPECT_EQ(matmul_depth_piece(769), 392);    // 392 + 377
  EXPECT_EQ(matmul_depth_piece(2304), 576);   // four
  EXPECT_EQ(matmul_depth_piece(50304), 400);  // 128: 125 of 400, one of 304
  for (std::int64_t depth = 1; depth < 5000; ++depth) {
    const std::int64_t piece = matmul_depth_piece(depth);
    ASSERT_LE(piece, 768);
    ASSERT_TRUE(piece % 8 == 0 || piece == depth);
    const std::int64_t pieces = (depth + piece - 1) / piece;
    if (pieces > 1 && depth % (8 * pieces) == 0) {
      ASSERT_EQ(matmul_depth_piece(depth / 2), piece) << depth;
    }
  }
}

TEST(Matmul, WorkspaceForASizeIsEnoughForEverySmallerOne) {
  for (const DType c_dtype : {DType::kF32, DType::kBF16}) {
    std::int64_t by_rows = 0, by_columns = 0, by_depth = 0;
    for (std::int64_t n = 1; n < 3200; n += 7) {
      const std::int64_t rows = matmul_workspace_bytes(n, 800, 1600, c_dtype);
      const std::int64_t columns = matmul_workspace_bytes(800, n, 1600, c_dtype);
      const std::int64_t depth = matmul_workspace_bytes(800, 1600, n, c_dtype);
      ASSERT_TRUE(rows >= by_rows && columns >= by_columns && depth >= by_depth) << n;
      by_rows = rows, by_columns = columns, by_depth = depth;
    }
  }
}

// Lists are divided among threads by the matmul, or by rows and columns where that would be uneven or memory is short.
TEST(MatmulList, GivesEachMatmulTheBitsThatItHasAlone) {
  const std::vector<MatmulSizes> even = {{30, 64, 96}, {41, 40, 100}, {12, 64, 96}, {25, 96, 64}};
  const std::vector<MatmulSizes> uneven = {{300, 64, 96}, {20, 40, 100}, {7, 64, 96}};
  const std::vector<MatmulSizes> deep = {{30, 64, 900}, {41, 40, 1600}, {29, 64, 900}};
  const std::vector<MatmulSizes> wide = {{30, 320, 900}, {100, 1100, 900}, {61, 300, 800}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& list : {even, uneven, deep, wide}) {
      std::vector<Factors> factors;
      std::vector<OwnedTensor> alone;
      std::int64_t needed = 0;
      for (const MatmulSizes& sizes : list) {
        factors.emplace_back(dtype, sizes);
        alone.push_back(product(factors.back(), {.c_dtype = dtype, .turn_b = true}));
        needed = std::max(
            needed, matmul_list_workspace_bytes(sizes.rows, sizes.columns, sizes.depth, dtype));
      }
      for (const int threads : {1, 2, 3, 16}) {
        for (const std::int64_t room : {needed, 4 * needed}) {
          ThreadTeam team(threads);
          std::vector<OwnedTensor> each;
          std::vector<Matmul> matmuls;
          for (std::size_t i = 0; i < list.size(); ++i) {
            each.emplace_back(dtype, Values(alone[i].values().size()));
          }
          for (std::size_t i = 0; i < list.size(); ++i) {
            const auto [rows, columns, depth] = list[i];
            matmuls.push_back({.rows = rows,
                               .columns = columns,
                               .depth = depth,
                               .dtype = dtype,
                               .a = {factors[i].a.tensor().data, depth},
                               .b = {factors[i].b_t.tensor().data, depth, true},
                               .c = each[i]});
          }
          OwnedTensor workspace = test::workspace(room);
          matmul_list(team, matmuls, workspace);
          for (std::size_t i = 0; i < list.size(); ++i) {
            EXPECT_EQ(each[i].values(), alone[i].values()) << threads << " threads, number " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
