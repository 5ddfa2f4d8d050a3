/// A permutation of [0, n) for every key, computed without being stored.
///
/// A Feistel network permutes the smallest even power of two that holds n; a value that falls
/// outside [0, n) is permuted again until it falls inside ("cycle walking", Black and Rogaway,
/// Ciphers with Arbitrary Finite Domains, CT-RSA 2002). The power of two is below 4 n, so that
/// takes fewer than 4 tries on average.
#pragma once

#include <array>
#include <cstdint>

namespace sherd::data {

/// splitmix64's finalizer (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64 bits.
constexpr std::uint64_t mix(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// Hashes the words, in order, to 64 bits.
template <class... Words>
constexpr std::uint64_t hash_of(Words... words) {
  std::uint64_t hash = 0;
  ((hash = mix(hash ^ static_cast<std::uint64_t>(words))), ...);
  return hash;
}

class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key);

  /// The image of `i`, 0 <= i < n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  static constexpr int kNumRounds = 6;
  std::uint64_t permute(std::uint64_t value) const;

  std::uint64_t n_;
  int half_bits_;
  std::array<std::uint64_t, kNumRounds> keys_;
};

}  // namespace sherd::data
