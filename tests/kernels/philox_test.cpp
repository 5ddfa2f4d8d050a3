#include "kernels/philox.h"

#include <gtest/gtest.h>

#include "kernels/dropout.h"
#include "tests/support/oracles/oracle_philox.h"

namespace sherd::kernels {
namespace {

// Counter words are (block low, block high, step, site), key words (seed low, seed high).
std::array<std::uint32_t, 4> words(std::array<std::uint32_t, 4> counter,
                                   std::array<std::uint32_t, 2> key) {
  const RandomAddress address{(std::uint64_t{key[1]} << 32) | key[0], counter[2], counter[3]};
  const RandomBlock block = random_block(address, (std::uint64_t{counter[1]} << 32) | counter[0]);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// Random123's kat_vectors, the lines "philox4x32 10".
struct KnownAnswer {
  std::array<std::uint32_t, 4> counter;
  std::array<std::uint32_t, 2> key;
  std::array<std::uint32_t, 4> answer;
};
const KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  for (const KnownAnswer& known : kKnownAnswers) {
    EXPECT_EQ(words(known.counter, known.key), known.answer);
    EXPECT_EQ(oracle::philox4x32_10(known.counter, known.key), known.answer) << "the oracle";
  }
}

TEST(Philox, FourConsecutiveElementsShareABlock) {
  const RandomAddress address{0x0123456789abcdefull, 17, 99};
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{40}, std::uint64_t{1} << 34}) {
    const RandomBlock block = random_block(address, first / 4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(random_word(address, first + i), block.word[i]);
      EXPECT_EQ(random_word(address, first + i), oracle::random_word(address, first + i));
    }
  }
}

TEST(Philox, EveryPartOfTheAddressMatters) {
  const RandomAddress address{5, 6, 7};
  const std::uint32_t word = random_word(address, 8);
  EXPECT_NE(word, random_word({5 + (1ull << 32), 6, 7}, 8));
  EXPECT_NE(word, random_word({4, 6, 7}, 8));
  EXPECT_NE(word, random_word({5, 7, 7}, 8));
  EXPECT_NE(word, random_word({5, 6, 8}, 8));
  EXPECT_NE(word, random_word(address, 9));
  EXPECT_NE(word, random_word(address, 8 + (1ull << 34)));
}

TEST(Dropout, KeepsAnElementWhoseWordIsAtLeastTheThreshold) {
  const Dropout half{0.5f, {}, 0}, tenth{0.1f, {}, 0};
  EXPECT_EQ(half.threshold(), 0x80000000u);
  EXPECT_EQ(half.scale(), 2.0f);
  EXPECT_NEAR(tenth.threshold() / 4294967296.0, 0.1, 1e-8);
  EXPECT_FALSE(Dropout{}.active());
}

}  // namespace
}  // namespace sherd::kernels
