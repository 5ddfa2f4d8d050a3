// The bodies of the GPU kernels, compiled for the host and walked over whole index spaces: the bits
// of the CPU kernels, whatever the size of the packs.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/activation.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device_common/activation.h"
#include "kernels/device_common/layerwise_update.h"
#include "kernels/device_common/pointwise.h"
#include "kernels/device_common/rotary.h"
#include "kernels/device_common/token.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"
#include "kernels/token.h"
#include "tests/support/devices/body_walk.h"
#include "tests/support/values/exact_sums.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::random_values;
using test::same_bits;

template <class T>
class BodyOf : public ::testing::Test {
 public:
  static constexpr DType kType = dtype_of<T>;
  static constexpr int N = device_common::pack_of<T>();
  std::unique_ptr<Stream> stream = test::compute_stream();

  OwnedTensor filled(std::int64_t numel, std::uint64_t seed, double scale = 1.0) const {
    return {kType, random_values(numel, seed, scale)};
  }
};
using FloatTypes = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(BodyOf, FloatTypes);

Dropout dropout_at(std::int64_t first_element) {
  return {.probability = 0.3f, .address = {11, 22, 33}, .first_element = first_element};
}

TEST(Body, ExpLogAndSigmoidHaveTheCpusBitsOverTheWholeRange) {
  // Every 257th float: all exponents, both signs, and with 257 prime all low bits.
  for (std::uint64_t i = 0; i < (std::uint64_t{1} << 32); i += 257) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
    if (std::isnan(x)) continue;
    ASSERT_EQ(device_common::bits_of(device_common::fast_exp(x)),
              device_common::bits_of(cpu::fast_exp(x)))
        << x;
    ASSERT_EQ(device_common::bits_of(device_common::fast_tanh(x)),
              device_common::bits_of(cpu::fast_tanh(x)))
        << x;
    ASSERT_EQ(device_common::bits_of(device_common::fast_sigmoid(x)),
              device_common::bits_of(cpu::fast_sigmoid(x)))
        << x;
    const float log = device_common::fast_log(x), expected = cpu::fast_log(x);
    ASSERT_TRUE(device_common::bits_of(log) == device_common::bits_of(expected) ||
                (std::isnan(log) && std::isnan(expected)))
        << x;
  }
}

TEST(Body, RoundingTo16BitsIsTheElementTypesOwnOverTheWholeRange) {
  for (std::uint64_t i = 0; i < (std::uint64_t{1} << 32); i += 257) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
    ASSERT_EQ(device_common::narrow<BFloat16>(x).bits, BFloat16(x).bits) << x;
    ASSERT_EQ(device_common::narrow<Float16>(x).bits, Float16(x).bits) << x;
  }
}

TYPED_TEST(BodyOf, ResidualAndDropoutGiveTheCpusBitsWhereverTheTensorStarts) {
  using T = TypeParam;
  for (const std::int64_t numel : {1, 37, 256, 5003}) {
    for (const std::int64_t first : {0, 1, 2, 3, 1000001}) {
      const Dropout dropout = dropout_at(first);
      const OwnedTensor residual = this->filled(numel, 1), branch = this->filled(numel, 2);
      OwnedTensor expected(this->kType, numel), actual(this->kType, numel);
      residual_add(*this->stream, residual, branch, dropout, expected, 0.7f);
      test::run_flat<TestFixture::N>(
          numel, device_common::ResidualAdd<T>{
                     residual.tensor().template as<T>(), branch.tensor().template as<T>(),
                     device_common::Mask(dropout), 0.7f, actual.tensor().template as<T>()});
      EXPECT_TRUE(same_bits(actual, expected)) << numel << " from " << first;
      dropout_backward(*this->stream, branch, dropout, expected, 0.7f);
      test::run_flat<1>(numel, device_common::DropoutBackward<T>{branch.tensor().template as<T>(),
                                                                 device_common::Mask(dropout), 0.7f,
                                                                 actual.tensor().template as<T>()});
      EXPECT_TRUE(same_bits(actual, expected)) << numel << " from " << first;
    }
  }
}

TYPED_TEST(BodyOf, CastsAndSumsRoundAsTheCpu) {
  using T = TypeParam;
  const std::int64_t numel = 4099;
  const OwnedTensor x = this->filled(numel, 3, 100.0);
  const OwnedTensor wide(DType::kF32, random_values(numel, 4, 100.0));
  OwnedTensor expected(this->kType, numel), actual(this->kType, numel);
  if constexpr (!std::is_same_v<T, float>) {
    cast(*this->stream, wide, expected);
    test::run_flat<device_common::pack_of<float, T>()>(
        numel,
        device_common::Cast<float, T>{wide.tensor().as<float>(), actual.tensor().template as<T>()});
    EXPECT_TRUE(same_bits(actual, expected));
  }
  OwnedTensor expected_sum = wide, actual_sum = wide;
  add(*this->stream, x, expected_sum);
  test::run_flat<device_common::pack_of<float, T>()>(
      numel,
      device_common::Add<T, float>{x.tensor().template as<T>(), actual_sum.tensor().as<float>()});
  EXPECT_TRUE(same_bits(actual_sum, expected_sum));

  const OwnedTensor other = this->filled(numel, 5, 100.0), third = this->filled(numel, 6, 100.0);
  const ConstTensor inputs[] = {x, other, third};
  sum_in_order_on_host(inputs, 3, expected);
  test::run_flat<TestFixture::N>(numel,
                                 device_common::SumInOrder<T, T, 4>{
                                     {x.tensor().template as<T>(), other.tensor().template as<T>(),
                                      third.tensor().template as<T>()},
                                     3,
                                     false,
                                     actual.tensor().template as<T>()});
  EXPECT_TRUE(same_bits(actual, expected));
  sum_in_order_on_host(inputs, 3, expected_sum, /*onto_out=*/true);
  test::run_flat<device_common::pack_of<float, T>()>(
      numel, device_common::SumInOrder<T, float, 4>{
                 {x.tensor().template as<T>(), other.tensor().template as<T>(),
                  third.tensor().template as<T>()},
                 3,
                 true,
                 actual_sum.tensor().as<float>()});
  EXPECT_TRUE(same_bits(actual_sum, expected_sum));
}

TYPED_TEST(BodyOf, SumsOfSquaresAreTheCpusButForTheRoundingsOfF64) {
  using T = TypeParam;
  for (const std::int64_t numel : {1, 15, 4096, 4097, 3 * 4096 + 777}) {
    const OwnedTensor x = this->filled(numel, 7);
    const std::int64_t blocks = (numel + 4095) / 4096;
    OwnedTensor expected = test::exact_sums(1), workspace(DType::kF64, blocks);
    sum_of_squares(*this->stream, x, expected, workspace);
    double total = 0.0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      double lane[16];
      for (int i = 0; i < 16; ++i) {
        lane[i] = device_common::lane_of_squares(x.tensor().template as<T>(), numel, block, i);
      }
      // The butterfly of measure.cu, as lane 0 sees it.
      for (const int offset : {4, 8, 1, 2}) {
        double next[16];
        for (int i = 0; i < 16; ++i) next[i] = lane[i] + lane[i ^ offset];
        std::copy_n(next, 16, lane);
      }
      total += lane[0];
    }
    const double exact = test::values_of_sums(expected)[0];
    EXPECT_NEAR(total, exact, 1e-12 * exact) << numel;
  }
}

TYPED_TEST(BodyOf, TheFirstNonFiniteElementIsFoundByWhicheverThreadSeesIt) {
  using T = TypeParam;
  test::Values values = random_values(3000, 8);
  values[1234] = -HUGE_VAL;
  values[2000] = NAN;
  const OwnedTensor x(this->kType, values);
  std::int64_t first = 3000;
  for (int thread = 0; thread < 512; ++thread) {
    first = std::min(
        first, device_common::first_non_finite(x.tensor().template as<T>(), 3000, thread, 512));
  }
  EXPECT_EQ(first, 1234);
}

TYPED_TEST(BodyOf, ActivationsHaveTheCpusBits) {
  using T = TypeParam;
  const std::int64_t tokens = 7, width = 40;  // a multiple of every pack
  for (const ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kGeluErf, ActivationKind::kRelu2,
        ActivationKind::kSwiGlu, ActivationKind::kGeGlu, ActivationKind::kClampedSwiGlu}) {
    const ActivationShape shape{kind, tokens, width};
    const std::int64_t inputs = tokens * width * (is_gated(kind) ? 2 : 1);
    const OwnedTensor x = this->filled(inputs, 9, 9.0), dy = this->filled(tokens * width, 10);
    OwnedTensor y(this->kType, tokens * width), actual(this->kType, tokens * width);
    OwnedTensor dx(this->kType, inputs), actual_dx(this->kType, inputs);
    activation_forward(*this->stream, {shape, x, y});
    activation_backward(*this->stream, {shape, x, dy, dx});
    const T* in = x.tensor().template as<T>();
    const T* d_out = dy.tensor().template as<T>();
    T* out = actual.tensor().template as<T>();
    T* d_in = actual_dx.tensor().template as<T>();
    constexpr int N = TestFixture::N;
    const auto plain = [&]<class A>(A) {
      test::run_flat<N>(tokens * width, device_common::PlainForward<A, T>{in, out});
      test::run_flat<N>(tokens * width, device_common::PlainBackward<A, T>{in, d_out, d_in});
    };
    const auto gated = [&]<class A>(A) {
      test::run_flat<N>(tokens * width, device_common::GatedForward<A, T>{in, out, width});
      test::run_flat<N>(tokens * width, device_common::GatedBackward<A, T>{in, d_out, d_in, width});
    };
    if (kind == ActivationKind::kGelu) plain(device_common::Gelu{});
    if (kind == ActivationKind::kGeluErf) plain(device_common::GeluErf{});
    if (kind == ActivationKind::kRelu2) plain(device_common::Relu2{});
    if (kind == ActivationKind::kSwiGlu) gated(device_common::Gated<device_common::Silu>{});
    if (kind == ActivationKind::kGeGlu) gated(device_common::Gated<device_common::Gelu>{});
    if (kind == ActivationKind::kClampedSwiGlu) gated(device_common::ClampedSwiGlu{});
    EXPECT_TRUE(same_bits(actual, y));
    EXPECT_TRUE(same_bits(actual_dx, dx));
  }
}

TYPED_TEST(BodyOf, RotaryTurnsQueryAndKeyHeadsAsTheCpuAndLeavesValuesAlone) {
  using T = TypeParam;
  Rotary args;
  args.sequences = 2, args.positions = 5;
  args.query_heads = 4, args.kv_heads = 2, args.head_width = 16;
  const OwnedTensor table(DType::kF32, random_values(5 * 16, 11));
  OwnedTensor expected = this->filled(2 * 5 * 8 * 16, 12), actual = expected;
  args.table = table;
  for (const bool inverse : {false, true}) {
    args.inverse = inverse;
    args.qkv = expected;
    rotary(*this->stream, args);
    const device_common::Rotate<T> work{actual.tensor().template as<T>(),
                                        table.tensor().as<float>(),
                                        nullptr,
                                        5,
                                        6,
                                        8,
                                        8,
                                        inverse ? -1.0f : 1.0f};
    test::run_flat<TestFixture::N>(work.num_pairs(10), work);
    EXPECT_TRUE(same_bits(actual, expected));
  }
}

TYPED_TEST(BodyOf, EmbeddingsAndTheSumsOfTheirGradientsHaveTheCpusBits) {
  using T = TypeParam;
  const std::int64_t B = 3, S = 5, D = 24, V = 7;
  const OwnedTensor tokens(test::random_tokens(B * S, V, 13));
  const OwnedTensor weight = this->filled(V * D, 14), positions = this->filled(S * D, 15);
  const OwnedTensor dy = this->filled(B * S * D, 16);
  const Dropout dropout = dropout_at(96);
  OwnedTensor expected(this->kType, B * S * D), actual(this->kType, B * S * D);
  embedding_forward(*this->stream, {B, S, D, V, tokens, weight, positions, dropout, expected});
  test::run_flat<TestFixture::N>(
      B * S * D, device_common::Embed<T>{
                     tokens.tensor().as<std::int32_t>(), weight.tensor().template as<T>(),
                     positions.tensor().template as<T>(), nullptr, actual.tensor().template as<T>(),
                     device_common::Mask(dropout), S, D, V, 1.0f});
  EXPECT_TRUE(same_bits(actual, expected));

  OwnedTensor d_weight(DType::kF32, V * D), actual_d(DType::kF32, test::Values(V * D, 0.0));
  OwnedTensor d_position(DType::kF32, S * D);
  const OwnedTensor workspace = test::workspace(embedding_backward_workspace_bytes(B * S, V, {}));
  EmbeddingBackward backward;
  backward.sequences = B, backward.positions = backward.position_rows = S;
  backward.width = D, backward.vocab_size = V;
  backward.tokens = tokens, backward.dy = dy, backward.dropout = dropout;
  backward.d_token_weight = d_weight, backward.d_position_weight = d_position;
  backward.workspace = workspace.tensor();
  embedding_backward(*this->stream, backward);
  const device_common::EmbeddingSums<T> sums{dy.tensor().template as<T>(),
                                             device_common::Mask(dropout), D};
  constexpr int N = TestFixture::N;
  for (std::int64_t v = 0; v < V; ++v) {
    for (std::int64_t d = 0; d < D; d += N) {
      float sum[N] = {};
      for (std::int64_t t = 0; t < B * S; ++t) {
        if (tokens.tensor().as<std::int32_t>()[t] == v) sums.template add<N>(t, d, sum);
      }
      std::copy_n(sum, N, actual_d.tensor().as<float>() + v * D + d);
    }
  }
  EXPECT_TRUE(same_bits(actual_d, d_weight));
}

}  // namespace
}  // namespace sherd::kernels
