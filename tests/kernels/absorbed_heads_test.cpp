// Heads that attend to latents: against the sums that keys and values of heads would give, in f64.

#include "kernels/absorbed_heads.h"

#include <gtest/gtest.h>

#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t T = 5, H = 3, N = 4, R = 6, V = 5, C = 7, K = N + R, kRank = 2;
constexpr LatentHeads kShape{
    .tokens = T, .heads = H, .plain = N, .rotated = R, .value = V, .first = 7, .columns = 14};
constexpr float kScale = 0.75f;

double at(const Values& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

// Where a packed head has number i of its part: a rotated one, or a plain one.
std::int64_t rotated_place(std::int64_t i) {
  return i % (R / 2) + i / (R / 2) * (K / 2);
}
std::int64_t plain_place(std::int64_t i) {
  return R / 2 + i % (N / 2) + i / (N / 2) * (K / 2);
}

struct AbsorbedCase {
  DType dtype;
  bool adapter;
};

class AbsorbedHeadsOf : public testing::TestWithParam<AbsorbedCase> {
 protected:
  static DType dtype() { return GetParam().dtype; }
  AbsorbedMatrix matrix() const {
    AbsorbedMatrix matrix{.up = up_, .latent = C};
    if (!GetParam().adapter) return matrix;
    matrix.a = a_;
    matrix.b = b_;
    matrix.rank = kRank;
    matrix.scale = kScale;
    return matrix;
  }
  // W with the adapter, row `row`, column c.
  double whole(std::int64_t row, std::int64_t c) const {
    double value = at(up, row * C + c);
    for (std::int64_t r = 0; GetParam().adapter && r < kRank; ++r) {
      value += kScale * at(b, row * kRank + r) * at(a, r * C + c);
    }
    return value;
  }
  struct Memory {
    Memory()
        : plain(dtype(), H * T * V),
          latents(dtype(), H * T * C),
          thin(dtype(), H * T * kRank),
          workspace(test::workspace(absorbed_workspace_bytes(kShape, C, kRank, dtype()))) {}
    AbsorbedScratch scratch() { return {plain, latents, thin}; }
    OwnedTensor plain, latents, thin, workspace;
  };
  Outputs absorbed(LatentHeads shape, ConstTensor packed, ConstTensor latents) const {
    return test::on_any_number_of_threads([&](Stream& stream) {
      Memory memory;
      OwnedTensor qkv(dtype(), shape.tokens * (H + 2) * (C + R));
      absorb_queries(stream, {.shape = shape,
                              .matrix = matrix(),
                              .packed = packed,
                              .latents = latents,
                              .qkv = qkv,
                              .scratch = memory.scratch(),
                              .workspace = memory.workspace});
      return Outputs{qkv};
    });
  }
  Outputs expanded(LatentHeads shape, ConstTensor attended) const {
    return test::on_any_number_of_threads([&](Stream& stream) {
      Memory memory;
      OwnedTensor values(dtype(), shape.tokens * H * V);
      expand_attended(stream, {.shape = shape,
                               .matrix = matrix(),
                               .attended = attended,
                               .values = values,
                               .scratch = memory.scratch(),
                               .workspace = memory.workspace});
      return Outputs{values};
    });
  }
  // An adapter's addend is a product of rounded numbers, and is added after a rounding.
  static test::Tolerance tolerance() {
    test::Tolerance tolerance = test::rounded_once(dtype());
    if (GetParam().adapter && dtype() == DType::kBF16) tolerance.floor += 0x1p-7;
    if (GetParam().adapter && dtype() == DType::kF16) tolerance.floor += 0x1p-10;
    return tolerance;
  }

  const OwnedTensor up_{dtype(), test::random_values(H*(N + V) * C, 1)},
      a_{dtype(), test::random_values(kRank*C, 2)},
      b_{dtype(), test::random_values(H*(N + V) * kRank, 3)},
      packed_{dtype(), test::random_values(T*(H + 2) * K, 4)},
      latents_{dtype(), test::random_values(T*C, 5)},
      attended_{dtype(), test::random_values(T*H*(C + R), 6)};
  const Values up = up_.values(), a = a_.values(), b = b_.values(), packed = packed_.values(),
               latents = latents_.values(), attended = attended_.values();
};
INSTANTIATE_TEST_SUITE_P(Types, AbsorbedHeadsOf,
                         testing::Values(AbsorbedCase{DType::kF32, false},
                                         AbsorbedCase{DType::kF32, true},
                                         AbsorbedCase{DType::kBF16, false},
                                         AbsorbedCase{DType::kBF16, true},
                                         AbsorbedCase{DType::kF16, true}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.dtype)) +
                                  (info.param.adapter ? "_with_an_adapter" : "");
                         });

TEST_P(AbsorbedHeadsOf, AQuerysPlainNumbersBecomeALatentAndRotatedOnesStay) {
  const Values qkv = absorbed(kShape, packed_, latents_)[0].values();
  Values expected;
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < H + 2; ++h) {
      const std::int64_t head = (t * (H + 2) + h) * K;
      for (std::int64_t c = 0; c < C; ++c) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < N; ++i) {
          sum += h < H ? at(packed, head + plain_place(i)) * whole(h * (N + V) + i, c) : 0.0;
        }
        expected.push_back(h < H ? sum : at(latents, t * C + c));
      }
      for (std::int64_t i = 0; i < R; ++i) {
        expected.push_back(h <= H ? at(packed, head + rotated_place(i)) : 0.0);
      }
    }
  }
  EXPECT_TRUE(test::close(qkv, expected, tolerance()));
}

TEST_P(AbsorbedHeadsOf, SumsOfLatentsBecomeValuesOfHeads) {
  const Values values = expanded(kShape, attended_)[0].values();
  Values expected;
  for (std::int64_t row = 0; row < T * H; ++row) {
    for (std::int64_t v = 0; v < V; ++v) {
      double sum = 0.0;
      for (std::int64_t c = 0; c < C; ++c) {
        sum += at(attended, row * (C + R) + c) * whole(row % H * (N + V) + N + v, c);
      }
      expected.push_back(sum);
    }
  }
  EXPECT_TRUE(test::close(values, expected, tolerance()));
}

TEST_P(AbsorbedHeadsOf, OneTokenHasTheBitsThatItHasAmongOthers) {
  LatentHeads one = kShape;
  one.tokens = 1;
  const OwnedTensor together = absorbed(kShape, packed_, latents_)[0],
                    values = expanded(kShape, attended_)[0];
  const auto row = [](const OwnedTensor& all, std::int64_t t) {
    const std::int64_t width = all.numel() / T;
    return ConstTensor(all.tensor()).part(t * width, width);
  };
  for (std::int64_t t = 0; t < T; ++t) {
    EXPECT_TRUE(
        test::same_bits(absorbed(one, row(packed_, t), row(latents_, t))[0], row(together, t)));
    EXPECT_TRUE(test::same_bits(expanded(one, row(attended_, t))[0], row(values, t)));
  }
}

TEST_P(AbsorbedHeadsOf, TheKeyOfAllHeadsIsPackedAsAHeadIs) {
  const OwnedTensor query(dtype(), test::random_values(T * H * K, 7)),
      down(dtype(), test::random_values(T * 14, 8));
  const OwnedTensor out = std::move(test::on_any_number_of_threads([&](Stream& stream) {
    OwnedTensor one(dtype(), T * (H + 2) * K);
    pack_one_key(stream, kShape, query, down, one);
    return Outputs{one};
  })[0]);
  const Values got = out.values(), queries = query.values(), keys = down.values();
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < H + 2; ++h) {
      const std::int64_t head = (t * (H + 2) + h) * K;
      for (std::int64_t i = 0; i < N; ++i) {
        EXPECT_EQ(at(got, head + plain_place(i)), h < H ? at(queries, (t * H + h) * K + i) : 0.0);
      }
      for (std::int64_t i = 0; i < R; ++i) {
        const double own = h < H ? at(queries, (t * H + h) * K + N + i) : at(keys, t * 14 + 7 + i);
        EXPECT_EQ(at(got, head + rotated_place(i)), h <= H ? own : 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
