#include "tests/kernels/attention_maxima.h"

#include <limits>

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class AttentionMaxima : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionMaxima, test::compute_types(), test::type_name);

// Keys after a query, outside of its window or in another document don't count, nor does padding.
TEST_P(AttentionMaxima, AreTorchsForEveryMask) {
  for (const MaximaCase& c : maxima_cases()) {
    const OwnedTensor qkv = c.qkv(GetParam());
    EXPECT_EQ(numbers_of(test::on_cpu(maxima_work(c, qkv))[kMaximaWords]), c.largest);
  }
}

TEST_P(AttentionMaxima, ArentCappedAndLeaveTheResultsAsTheyAre) {
  for (MaximaCase c : maxima_cases()) {
    c.shape.softcap = 1.5f;
    const OwnedTensor qkv = c.qkv(GetParam());
    const Outputs with = test::on_cpu(maxima_work(c, qkv));
    const Outputs without = test::on_cpu(maxima_work(c, qkv, false));
    EXPECT_EQ(numbers_of(with[kMaximaWords]), c.largest);
    EXPECT_TRUE(test::same_bits(with[kMaximaOut], without[kMaximaOut]));
    EXPECT_TRUE(test::same_bits(with[kMaximaLse], without[kMaximaLse]));
  }
}

TEST_P(AttentionMaxima, JoinThoseOfEarlierCallsAndOfOtherThreads) {
  for (const MaximaCase& c : maxima_cases()) {
    const OwnedTensor qkv = c.qkv(GetParam());
    const auto find = [&](Stream& stream) {
      Outputs out = test::on_cpu(maxima_work(c, qkv));
      OwnedTensor workspace =
          test::workspace(attention_workspace_bytes(c.shape, GetParam(), compute_device(stream)));
      if (!c.lengths.empty()) return out;
      attention_forward(stream, {.shape = c.shape,
                                 .qkv = qkv,
                                 .dropout = {},
                                 .out = out[kMaximaOut],
                                 .lse = out[kMaximaLse],
                                 .workspace = workspace,
                                 .maxima = out[kMaximaWords]});
      stream.synchronize();
      return out;
    };
    EXPECT_EQ(numbers_of(test::on_any_number_of_threads(find)[kMaximaWords]), c.largest);
  }
}

// Of scores that are all negative, the one nearest to 0.
TEST_P(AttentionMaxima, MayBeNegative) {
  MaximaCase c = maxima_cases()[0];
  c.shape.positions = 1;
  const OwnedTensor qkv(GetParam(), Values{1, 1, 1, 1, -1, -2, -1, -2, 5, 5, 5, 5});
  EXPECT_EQ(numbers_of(test::on_cpu(maxima_work(c, qkv))[kMaximaWords]), Values{-3.0});
}

TEST(OrderedWords, HaveTheOrderOfTheirNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::uint32_t before = 0;
  for (const float x : {-infinity, -3e38f, -1.0f, -1e-45f, -0.0f, 0.0f, 1e-45f, 2.0f, infinity}) {
    const std::uint32_t word = ordered_word(std::bit_cast<std::uint32_t>(x));
    EXPECT_LT(before, word) << x;
    EXPECT_EQ(number_of_ordered(word), x);
    before = word;
  }
  EXPECT_EQ(number_of_ordered(0), -infinity) << "no number yet";
}

}  // namespace
}  // namespace sherd::kernels
