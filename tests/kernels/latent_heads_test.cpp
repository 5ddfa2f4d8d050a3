// Heads of latent attention: what is joined can be told apart again.

#include "kernels/latent_heads.h"

#include <gtest/gtest.h>

#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr LatentHeads kShape{
    .tokens = 5, .heads = 3, .plain = 4, .rotated = 2, .value = 5, .first = 7, .columns = 10};
constexpr std::int64_t kHead = 6, kHeads = 3 * kHead, kPart = 4 + 5, kParts = 3 * kPart;

// Whole numbers below 200, which every type has.
Values counted(std::int64_t numel, std::int64_t from) {
  Values values;
  for (std::int64_t i = 0; i < numel; ++i) values.push_back(static_cast<double>((from + i) % 199));
  return values;
}

double at(const Values& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

class LatentHeadsOf : public testing::TestWithParam<DType> {
 protected:
  Values joined() const {
    return test::on_any_number_of_threads([&](Stream& stream) {
             OwnedTensor qkv(GetParam(), 5 * 3 * kHeads);
             join_latent_heads(stream, kShape, query_, parts_, down_, qkv);
             return Outputs{qkv};
           })[0]
        .values();
  }
  const OwnedTensor query_{GetParam(), counted(5 * kHeads, 0)},
      parts_{GetParam(), counted(5 * kParts, 17)}, down_{GetParam(), counted(5 * 10, 31)};
};
INSTANTIATE_TEST_SUITE_P(Types, LatentHeadsOf, test::compute_types(), test::type_name);

TEST_P(LatentHeadsOf, QueriesHaveTheirRotatedPairsHalfAHeadApart) {
  const Values qkv = joined(), query = query_.values();
  // Numbers 0..3 of a head are plain, 4 and 5 a rotated pair.
  constexpr std::int64_t kPlaces[] = {4, 0, 1, 5, 2, 3};
  for (std::int64_t i = 0; i < kHead; ++i) {
    EXPECT_EQ(at(qkv, 3 * kHeads + 2 * kHead + i), at(query, kHeads + 2 * kHead + kPlaces[i]));
  }
}

TEST_P(LatentHeadsOf, KeysShareTheirRotatedNumbers) {
  const Values qkv = joined(), parts = parts_.values(), down = down_.values();
  for (std::int64_t head = 0; head < 3; ++head) {
    const std::int64_t key = 3 * kHeads + kHeads + head * kHead;
    EXPECT_EQ(at(qkv, key), at(down, 10 + 7));
    EXPECT_EQ(at(qkv, key + 3), at(down, 10 + 8));
    EXPECT_EQ(at(qkv, key + 1), at(parts, kParts + head * kPart));
    EXPECT_EQ(at(qkv, key + 4), at(parts, kParts + head * kPart + 2));
  }
}

TEST_P(LatentHeadsOf, ValuesAreFilledUpWithZeros) {
  const Values qkv = joined(), parts = parts_.values();
  const std::int64_t value = 2 * kHeads + kHead;
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(at(qkv, value + i), at(parts, kPart + 4 + i));
  EXPECT_EQ(at(qkv, value + 5), 0.0);
}

TEST_P(LatentHeadsOf, ComeApartAsTheyWereJoinedAndTheSharedPartIsSummedOverHeads) {
  const OwnedTensor qkv(GetParam(), joined());
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    OwnedTensor query(GetParam(), 5 * kHeads), parts(GetParam(), 5 * kParts),
        down(GetParam(), Values(50, -1.0));
    split_latent_heads(stream, kShape, qkv, query, parts, down);
    return Outputs{query, parts, down};
  });
  EXPECT_TRUE(test::same_bits(out[0], query_));
  EXPECT_TRUE(test::same_bits(out[1], parts_));
  Values expected = down_.values();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = i % 10 == 7 || i % 10 == 8 ? 3 * expected[i] : -1.0;
  }
  EXPECT_TRUE(test::same_bits(out[2], OwnedTensor(GetParam(), expected)));
}

TEST_P(LatentHeadsOf, NarrowValuesGetGapsAndLoseThem) {
  const OwnedTensor values(GetParam(), counted(5 * 3 * 5, 3));
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    OwnedTensor padded(GetParam(), Values(5 * kHeads, -1.0)), again(GetParam(), 5 * 3 * 5);
    spread_values(stream, kShape, values, padded);
    take_values(stream, kShape, padded, again);
    return Outputs{padded, again};
  });
  EXPECT_TRUE(test::same_bits(out[1], values));
  const Values padded = out[0].values();
  for (std::int64_t row = 0; row < 5 * 3; ++row) EXPECT_EQ(at(padded, row * kHead + 5), 0.0);
}

}  // namespace
}  // namespace sherd::kernels
