#include "tests/support/oracles/oracle_philox.h"

namespace sherd::oracle {
namespace {

// The high and low half of a 32 x 32 bit product.
std::array<std::uint32_t, 2> mulhilo(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t product = static_cast<std::uint64_t>(a) * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = mulhilo(0xD2511F53u, counter[0]);
    const auto [high1, low1] = mulhilo(0xCD9E8D57u, counter[2]);
    counter = {high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0};
    key[0] += 0x9E3779B9u;  // the golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

std::uint32_t random_word(const kernels::RandomAddress& address, std::uint64_t element) {
  const std::uint64_t block = element / 4;
  const auto words = philox4x32_10(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), address.step,
       address.site},
      {static_cast<std::uint32_t>(address.seed), static_cast<std::uint32_t>(address.seed >> 32)});
  return words[element % 4];
}

Values dropout_mask(const kernels::Dropout& dropout, std::int64_t numel) {
  const double probability = static_cast<double>(dropout.probability);
  Values mask(static_cast<std::size_t>(numel), 1.0);
  if (probability == 0.0) return mask;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const std::uint32_t word =
        oracle::random_word(dropout.address, static_cast<std::uint64_t>(dropout.first_element) + i);
    // Words are integers: word >= p 2^32 and word >= floor(p 2^32) differ only where p 2^32 has a
    // fraction, and a float p >= 2^-8 leaves none.
    mask[i] =
        static_cast<double>(word) >= probability * 4294967296.0 ? 1.0 / (1.0 - probability) : 0.0;
  }
  return mask;
}

}  // namespace sherd::oracle
