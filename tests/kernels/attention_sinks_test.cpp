// Attention sinks: a number per head that joins the softmax and has no value.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/kv_cache.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t S = 37, H = 4, G = 2, K = 8, B = 2;

AttentionShape shape(std::int64_t window = 0) {
  return {.sequences = B,
          .positions = S,
          .query_heads = H,
          .kv_heads = G,
          .head_width = K,
          .window = window};
}

// In f64, as the header has it: out [B S, H K] and lse [B, H, S].
struct Attended {
  Values out = Values(B * S * H * K), lse = Values(B * H * S);
};
Attended oracle(const Values& qkv, const Values& sinks, std::int64_t window) {
  Attended result;
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return qkv[static_cast<std::size_t>(row * (H + 2 * G) * K + column)];
  };
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      const std::int64_t g = h / (H / G);
      for (std::int64_t q = 0; q < S; ++q) {
        double sum = std::exp(sinks[static_cast<std::size_t>(h)]);
        Values out(K);
        for (std::int64_t k = window > 0 ? std::max<std::int64_t>(0, q - window + 1) : 0; k <= q;
             ++k) {
          double score = 0.0;
          for (std::int64_t i = 0; i < K; ++i) {
            score += at(b * S + q, h * K + i) * at(b * S + k, (H + g) * K + i);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(K)));
          sum += weight;
          for (std::int64_t i = 0; i < K; ++i) {
            out[static_cast<std::size_t>(i)] += weight * at(b * S + k, (H + G + g) * K + i);
          }
        }
        result.lse[static_cast<std::size_t>((b * H + h) * S + q)] = std::log(sum);
        for (std::int64_t i = 0; i < K; ++i) {
          result.out[static_cast<std::size_t>((b * S + q) * H * K + h * K + i)] =
              out[static_cast<std::size_t>(i)] / sum;
        }
      }
    }
  }
  return result;
}

class AttentionSinks : public testing::TestWithParam<std::int64_t> {
 protected:
  Outputs forward(const OwnedTensor& qkv, const OwnedTensor* sinks) const {
    return test::on_any_number_of_threads([&](Stream& stream) {
      Outputs out{{DType::kF32, B * S * H * K}, {DType::kF32, B * H * S}};
      OwnedTensor scratch =
          test::workspace(attention_workspace_bytes(shape(), DType::kF32, compute_device(stream)));
      attention_forward(stream, {.shape = shape(GetParam()),
                                 .qkv = qkv,
                                 .dropout = {},
                                 .out = out[0],
                                 .lse = out[1],
                                 .workspace = scratch,
                                 .documents = {},
                                 .keys_values = {},
                                 .maxima = {},
                                 .sinks = sinks ? ConstTensor(*sinks) : ConstTensor{}});
      stream.synchronize();
      return out;
    });
  }
  const OwnedTensor qkv_{DType::kF32, test::random_values(B*S*(H + 2 * G) * K, 1, 2.0)},
      sinks_{DType::kF32, {0.5, -2.0, 3.0, 0.0}};
};
INSTANTIATE_TEST_SUITE_P(Windows, AttentionSinks, testing::Values(0, 5));

TEST_P(AttentionSinks, TakeAShareOfTheWeightsAndGiveNoValue) {
  const Outputs out = forward(qkv_, &sinks_);
  const Attended expected = oracle(qkv_.values(), sinks_.values(), GetParam());
  EXPECT_TRUE(test::close(out[0], expected.out, {.relative = 1e-5, .absolute = 1e-5}));
  EXPECT_TRUE(test::close(out[1], expected.lse, {.relative = 1e-5, .absolute = 1e-5}));
}

TEST_P(AttentionSinks, ThatAreVeryLowChangeNoBit) {
  const OwnedTensor low(DType::kF32, Values(H, -1e30));
  const Outputs with = forward(qkv_, &low), without = forward(qkv_, nullptr);
  EXPECT_TRUE(test::same_bits(with[0], without[0]));
  EXPECT_TRUE(test::same_bits(with[1], without[1]));
}

TEST_P(AttentionSinks, HaveTheGradientOfCentralDifferences) {
  const OwnedTensor dout(DType::kF32, test::random_values(B * S * H * K, 2));
  const Outputs out = forward(qkv_, &sinks_);
  const Values gradient = test::on_any_number_of_threads([&](Stream& stream) {
                            OwnedTensor d_sinks(DType::kF32, H);
                            attention_sinks_gradient(stream, {.shape = shape(GetParam()),
                                                              .out = out[0],
                                                              .lse = out[1],
                                                              .dout = dout,
                                                              .sinks = sinks_,
                                                              .d_sinks = d_sinks});
                            stream.synchronize();
                            return Outputs{d_sinks};
                          })[0]
                              .values();
  const Values d = dout.values();
  for (std::size_t h = 0; h < H; ++h) {
    constexpr double kStep = 1e-4;
    double sides[2] = {};
    for (int side = 0; side < 2; ++side) {
      Values moved = sinks_.values();
      moved[h] += side == 0 ? kStep : -kStep;
      const Attended there = oracle(qkv_.values(), moved, GetParam());
      for (std::size_t i = 0; i < d.size(); ++i) sides[side] += there.out[i] * d[i];
    }
    EXPECT_NEAR(gradient[h], (sides[0] - sides[1]) / (2 * kStep), 1e-4) << h;
  }
}

TEST_P(AttentionSinks, HaveTheSameBitsWithACache) {
  AttentionShape one = shape(GetParam());
  one.sequences = 1;
  const std::int64_t width = one.packed_width();
  const OwnedTensor qkv(DType::kF32, test::random_values(S * width, 3, 2.0));
  const auto stream = test::compute_stream(2);
  OwnedTensor out(DType::kF32, S * H * K), lse(DType::kF32, H * S), cached(DType::kF32, S * H * K),
      cache(DType::kF32, kv_cache_numel(one));
  OwnedTensor scratch =
      test::workspace(std::max(attention_workspace_bytes(one, DType::kF32, compute_device(*stream)),
                               cached_attention_workspace_bytes(one, compute_device(*stream))));
  attention_forward(*stream, {.shape = one,
                              .qkv = qkv,
                              .dropout = {},
                              .out = out,
                              .lse = lse,
                              .workspace = scratch,
                              .documents = {},
                              .keys_values = {},
                              .maxima = {},
                              .sinks = sinks_});
  for (std::int64_t first = 0, count = 0; first < S; first += count) {
    count = std::min<std::int64_t>(first == 0 ? 20 : 1, S - first);
    cached_attention(*stream, {.shape = one,
                               .first = first,
                               .count = count,
                               .qkv = ConstTensor(qkv).part(first * width, count * width),
                               .cache = cache,
                               .out = cached.tensor().part(first * H * K, count * H * K),
                               .workspace = scratch,
                               .sinks = sinks_});
  }
  stream->synchronize();
  EXPECT_TRUE(test::same_bits(cached, out));
}

}  // namespace
}  // namespace sherd::kernels
