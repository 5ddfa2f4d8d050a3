#include "engine/data/shuffle.h"

#include <bit>
#include <cstddef>

#include "core/error.h"

namespace sherd::data {

Permutation::Permutation(std::uint64_t n, std::uint64_t key)
    : n_(n), half_bits_((std::bit_width(n > 0 ? n - 1 : 0) + 1) / 2) {
  SHERD_CHECK(n > 0 && n <= std::uint64_t{1} << 62, "a permutation of {} things", n);
  for (std::size_t round = 0; round < keys_.size(); ++round) keys_[round] = hash_of(key, round);
}

std::uint64_t Permutation::permute(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix(right ^ key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  SHERD_CHECK(i < n_, "thing {} of {}", i, n_);
  do {
    i = permute(i);
  } while (i >= n_);
  return i;
}

}  // namespace sherd::data
